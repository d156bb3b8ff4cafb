"""Inference over HTTP: the body into the engine's room as it comes from the socket, the answer back."""

from __future__ import annotations

from typing import Any

from megalith.serve.failures import BadRequestError
from megalith.serve.front.service import InferCall, InferenceService
from megalith.serve.http.bodies import content_codings, decompress
from megalith.serve.http.connection import Reply
from megalith.serve.http.head import RequestHead
from megalith.serve.http.response import HttpResponse, error_response
from megalith.serve.protocol.json_request import read_json_request
from megalith.serve.protocol.json_response import answer_pieces
from megalith.serve.protocol.message import InferMessage
from megalith.serve.protocol.packed import PackedLayout, read_packed
from megalith.serve.request import Answer, ModelDescription

JSON_LENGTH = "inference-header-content-length"
_BINARY = "application/octet-stream"


class InferUpload:
    """A request for a model: takes the body, and replies with the answer."""

    def __init__(self, service: InferenceService, call: InferCall, head: RequestHead, reply: Reply) -> None:
        self._service, self._call, self._reply = service, call, reply
        self._json_length = head.whole_number(JSON_LENGTH)
        self._codings = content_codings(head.headers.get("content-encoding", ""))
        self._max_bytes = service.max_request_bytes
        self._open = True

    def destination(self, num_bytes: int) -> memoryview | None:
        """A room for a body whose tensors are binary and not compressed; others have a way to go first."""
        length = self._json_length
        if length is None or self._codings:
            return None
        if length > num_bytes:
            raise BadRequestError(
                f"Inference-Header-Content-Length is {length} and the body has {num_bytes} bytes; send all."
            )
        self._call.room = self._service.engine.reserve(num_bytes, length)
        memory: memoryview = self._call.room.memory
        return memory

    def complete(self, body: memoryview) -> None:
        """Reads the request and hands it to the engine."""
        call = self._call
        call.num_bytes = len(body)
        try:
            message = self._read(body)
        except BaseException as error:
            self._service.refuse(call, error)
            raise
        self._service.start(call, message, lambda result: self._answer(message, result))

    def abandon(self) -> None:
        """Frees the room, or takes the request back."""
        self._open = False
        self._service.cancel(self._call)

    def _read(self, body: memoryview) -> InferMessage:
        offset = 0 if self._call.room is not None else None
        if self._codings:
            body = memoryview(decompress(body, self._codings[0], self._max_bytes))
        length = len(body) if self._json_length is None else self._json_length
        if length > len(body):
            raise BadRequestError(
                f"Inference-Header-Content-Length is {length} and the body has {len(body)} bytes; send all."
            )
        if self._json_length == 0:
            return read_packed(body, packed_layout(self._call.model), offset)
        tail_offset = None if offset is None else length
        return read_json_request(bytes(body[:length]), body[length:], tail_offset)

    def _answer(self, message: InferMessage, result: Answer | BaseException) -> None:
        if not self._open:
            return
        self._open = False
        if isinstance(result, BaseException):
            self._reply(error_response(result))
            return
        pieces, json_length = answer_pieces(message, result)
        if json_length is None:
            self._reply(HttpResponse(200, pieces))
            return
        headers = (("Inference-Header-Content-Length", str(json_length)),)
        self._reply(HttpResponse(200, pieces, _BINARY, headers))


def packed_layout(model: ModelDescription) -> PackedLayout:
    """How packed requests of a model are laid out."""
    columns: Any = next((tensor.shape[-1] for tensor in model.inputs if tensor.name == "dense"), 0)
    return PackedLayout(max(0, columns), len(model.features), len(model.user_features))
