"""Bodies that cannot be read straight into their place: in chunks, or compressed. All are bounded."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.errors import TooLargeError, UnsupportedError

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]{0,256})?")
_MAX_LINE = 512
_MAX_TRAILERS = 16


def too_large(limit: int) -> TooLargeError:
    """The error of a body beyond the server's limit."""
    return TooLargeError(f"The body has more than {limit:,} bytes; send less, or set --max-request-mb.")


class ChunkedBody:
    """Takes a body in chunks, piece by piece."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._line = bytearray()
        self._left = 0
        """Bytes of the chunk that have not come yet."""
        self._state = "size"
        self._trailers = 0

    @property
    def done(self) -> bool:
        """Whether the last chunk has come."""
        return self._state == "done"

    @property
    def data(self) -> bytearray:
        """What has come."""
        return self._data

    def feed(self, piece: memoryview) -> int:
        """Takes what belongs to this body, and says how many bytes that were."""
        position = 0
        while position < len(piece) and not self.done:
            if self._state == "data":
                taken = min(self._left, len(piece) - position)
                self._data += piece[position : position + taken]
                self._left -= taken
                position += taken
                if not self._left:
                    self._state = "end"
            else:
                position += self._take_line(piece[position : position + _MAX_LINE])
        return position

    def _take_line(self, piece: memoryview) -> int:
        end = bytes(piece).find(b"\n")
        self._line += piece if end < 0 else piece[: end + 1]
        if len(self._line) > _MAX_LINE:
            raise BadRequestError("A line between chunks is too long; send sizes alone.")
        if end < 0:
            return len(piece)
        if not self._line.endswith(b"\r\n"):
            raise BadRequestError("A line between chunks does not end with CR LF; end it so.")
        line, self._line = bytes(self._line[:-2]), bytearray()
        self._read_line(line)
        return end + 1

    def _read_line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise BadRequestError("A chunk is longer than its size; send as many bytes.")
            self._state = "size"
        elif self._state == "size":
            found = _SIZE.fullmatch(line)
            if found is None:
                raise BadRequestError("The size of a chunk is no hexadecimal number; send one.")
            self._left = int(found[1], 16)
            if len(self._data) + self._left > self._limit:
                raise too_large(self._limit)
            self._state = "data" if self._left else "trailers"
        elif not line:
            self._state = "done"
        else:
            self._trailers += 1
            if self._trailers > _MAX_TRAILERS:
                raise BadRequestError("The body has too many trailers; send none.")


def content_codings(text: str) -> list[str]:
    """The encodings of a body, outermost last, or the error of one that is not known here."""
    codings = [coding.strip().lower() for coding in text.split(",") if coding.strip()]
    found = [{"x-gzip": "gzip"}.get(coding, coding) for coding in codings if coding != "identity"]
    for coding in found:
        if coding not in ("gzip", "deflate"):
            raise UnsupportedError(
                f"Content-Encoding '{coding[:40]}' is not known here; send gzip or deflate."
            )
    if len(found) > 1:
        raise UnsupportedError("The body is compressed twice; compress it once.")
    return found


def decompress(data: bytes | bytearray | memoryview, coding: str, limit: int) -> bytes:
    """The content of a compressed body; what would be larger than `limit` is not made."""
    # deflate is zlib's format by its definition, and bare deflate as some send it.
    forms = (16 + zlib.MAX_WBITS,) if coding == "gzip" else (zlib.MAX_WBITS, -zlib.MAX_WBITS)
    for form in forms:
        decoder = zlib.decompressobj(form)
        try:
            content = decoder.decompress(data, limit + 1)
        except zlib.error:
            continue
        if len(content) > limit:
            raise too_large(limit)
        if not decoder.eof or decoder.unused_data:
            raise BadRequestError(f"The body is no whole {coding}; send all of it and nothing behind it.")
        return content
    raise BadRequestError(f"The body is not {coding}, as its Content-Encoding says; compress it so.")


def compress(pieces: Sequence[bytes | memoryview], coding: str) -> bytes:
    """A response's body, compressed quickly."""
    encoder = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS if coding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*(encoder.compress(piece) for piece in pieces), encoder.flush()])


def accepted_coding(header: str | None) -> str | None:
    """The encoding that a client takes and we have, by its Accept-Encoding."""
    if not header:
        return None
    wanted = []
    for entry in header.split(","):
        name, _, weight = entry.partition(";")
        if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            wanted.append(name.strip().lower())
    return next((coding for coding in ("gzip", "deflate") if coding in wanted), None)
