"""ModelInferRequest on the wire: tensors as views of the message, the small rest by the stubs.

`raw_input_contents` (field 7) is nearly all of a message. Copying it out, as a generated parser does, would
cost more than everything else here. So the top level is walked in place, views are taken of those fields, and
what is left between them, a few hundred bytes, is parsed as the message that it is.
"""

from __future__ import annotations

from megalith.serve.failures import BadRequestError

_RAW_INPUT_CONTENTS = 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FIELD = (1 << 29) - 1


def split_request(message: bytes) -> tuple[bytes, list[memoryview]]:
    """The message without raw_input_contents, and these; a BadRequestError where the bytes are no message."""
    view = memoryview(message)
    position, end = 0, len(message)
    kept: list[memoryview] = []
    raw: list[memoryview] = []
    keep_from = 0
    while position < end:
        start = position
        tag, position = _varint(message, position)
        field, kind = tag >> 3, tag & 7
        if not 0 < field <= _MAX_FIELD or tag >= 1 << 32:
            raise _malformed()
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind == _BYTES:
            size, position = _varint(message, position)
            if size > end - position:
                raise _malformed()
            if field == _RAW_INPUT_CONTENTS:
                kept.append(view[keep_from:start])
                raw.append(view[position : position + size])
                keep_from = position + size
            position += size
        else:
            # Groups, which no field of this message is; the stubs' own parser knows what to make of them.
            return _by_parser(message)
        if position > end:
            raise _malformed()
    kept.append(view[keep_from:])
    return b"".join(kept), raw


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for index in range(position, min(position + 10, len(message))):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, index + 1
        shift += 7
    raise _malformed()


def _by_parser(message: bytes) -> tuple[bytes, list[memoryview]]:
    from google.protobuf.message import DecodeError
    from tritonclient.grpc import service_pb2

    parsed = service_pb2.ModelInferRequest()
    try:
        parsed.ParseFromString(message)
    except DecodeError:
        raise _malformed() from None
    raw = [memoryview(content) for content in parsed.raw_input_contents]
    parsed.ClearField("raw_input_contents")
    return parsed.SerializeToString(), raw


def _malformed() -> BadRequestError:
    return BadRequestError("The message is no ModelInferRequest; encode it with the protocol's own stubs.")
