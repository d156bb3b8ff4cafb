"""The head of an HTTP request, parsed strictly: what two parsers could read in two ways is refused."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.errors import TooLargeError, UnsupportedError

MAX_HEAD_BYTES = 16 << 10
_MAX_HEADERS = 100
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*"
    rb"([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?[ \t]*"
)
_DIGITS = re.compile(r"[0-9]{1,18}")
_SINGLE = frozenset(
    (
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "inference-header-content-length",
        "expect",
    )
)


class HeadTooLargeError(TooLargeError):
    """A head of more bytes or lines than the server takes (431)."""

    status = 431


class HttpVersionError(UnsupportedError):
    """Another version of HTTP than 1.0 and 1.1 (505)."""

    status = 505


class RequestHead(NamedTuple):
    """Request line and headers."""

    method: str
    path: str
    """Decoded; always begins with a slash."""
    query: str
    headers: dict[str, str]
    """By name in lower case; of several of one name, joined by commas."""
    content_length: int | None
    chunked: bool
    keep_alive: bool
    expects_continue: bool

    @property
    def has_body(self) -> bool:
        """Whether bytes follow the head."""
        return self.chunked or bool(self.content_length)

    def whole_number(self, name: str) -> int | None:
        """The value of a header that is a length; None where it is not sent."""
        text = self.headers.get(name)
        if text is None:
            return None
        if not _DIGITS.fullmatch(text):
            raise BadRequestError(f"Header {name} is '{text[:40]}'; send a whole number from 0.")
        return int(text)


def parse_head(data: bytes) -> RequestHead:
    """The head whose bytes end with the empty line."""
    lines = data[:-4].split(b"\r\n")
    if len(lines) > _MAX_HEADERS:
        raise HeadTooLargeError(f"The request has more than {_MAX_HEADERS} headers; send fewer.")
    line = _LINE.fullmatch(lines[0])
    if line is None:
        raise BadRequestError(
            "The request line is no 'METHOD PATH HTTP/1.1'; check what speaks to this port."
        )
    if line[3] != b"1" or line[4] not in (b"0", b"1"):
        raise HttpVersionError("This server speaks HTTP/1.1; use it.")
    headers = _headers(lines[1:])
    modern = line[4] == b"1"
    if modern and "host" not in headers:
        raise BadRequestError("The request has no Host header; send one.")
    path, _, query = line[2].decode("ascii").partition("?")
    chunked = _is_chunked(headers, modern)
    length = _content_length(headers)
    if chunked and length is not None:
        raise BadRequestError("The request has both Content-Length and Transfer-Encoding; send one.")
    tokens = {token.strip() for token in headers.get("connection", "").lower().split(",")}
    expect = headers.get("expect", "").lower()
    if expect not in ("", "100-continue"):
        raise BadRequestError("Header Expect is to be '100-continue'; send that or none.")
    return RequestHead(
        method=line[1].decode("ascii"),
        path=_path(path),
        query=query,
        headers=headers,
        content_length=length,
        chunked=chunked,
        keep_alive="close" not in tokens and (modern or "keep-alive" in tokens),
        expects_continue=expect != "" and modern,
    )


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            shown = line[:40].decode("ascii", "backslashreplace")
            raise BadRequestError(f"The header line '{shown}' is no 'Name: value'; fix it.")
        name = found[1].decode("ascii").lower()
        value = (found[2] or b"").decode("latin-1")
        if name in headers:
            if name in _SINGLE:
                raise BadRequestError(f"The request has two headers {name}; send one.")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _is_chunked(headers: dict[str, str], modern: bool) -> bool:
    encoding = headers.get("transfer-encoding")
    if encoding is None:
        return False
    if not modern:
        raise BadRequestError("HTTP/1.0 has no Transfer-Encoding; send Content-Length.")
    if encoding.strip().lower() != "chunked":
        raise UnsupportedError("Transfer-Encoding is to be 'chunked'; send that or Content-Length.")
    return True


def _content_length(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadRequestError(f"Content-Length is '{text[:40]}'; send a whole number from 0.")
    return int(text)


def _path(text: str) -> str:
    if text.startswith(("http://", "https://")):
        text = "/" + text.split("://", 1)[1].partition("/")[2]
    if not text.startswith("/"):
        raise BadRequestError("The path of a request begins with '/'; send such a one.")
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BadRequestError("The path of the request is not UTF-8; encode it so.") from None
    if not decoded.isprintable():
        raise BadRequestError("The path of the request has control characters; leave them out.")
    return decoded
