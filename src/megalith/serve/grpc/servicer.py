"""The methods of GRPCInferenceService, as handlers of bytes: no generated class, no second descriptor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from megalith.core.errors import MegalithError
from megalith.serve.failures import BadRequestError, ShuttingDownError
from megalith.serve.front.descriptions import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from megalith.serve.front.service import InferenceService
from megalith.serve.grpc.messages import infer_response, parameters_of, read_infer_request
from megalith.serve.grpc.wire import split_request
from megalith.serve.protocol.errors import UnsupportedError, failure_of
from megalith.serve.request import Answer

SERVICE = "inference.GRPCInferenceService"
_PREFIX = f"/{SERVICE}/"
_UNSUPPORTED = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
_log = logging.getLogger(__name__)

Method = Callable[[Any], Awaitable[Any]]


class InferenceServicer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers calls from a service."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._methods: dict[str, Any] = {
            _PREFIX + "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
            _PREFIX + "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        for name, request, method in self._unary():
            self._methods[_PREFIX + name] = grpc.unary_unary_rpc_method_handler(_checked(request, method))
        for name in _UNSUPPORTED:
            self._methods[_PREFIX + name] = grpc.unary_unary_rpc_method_handler(_unsupported)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None is one that there is not."""
        return self._methods.get(handler_call_details.method)

    async def _infer(self, request: bytes, context: Any) -> bytes:
        try:
            response = await self._score(request, context.time_remaining())
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await _abort(context, error)
            raise
        return bytes(response.SerializeToString())

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            try:
                scored = await self._score(request, context.time_remaining())
                answer = service_pb2.ModelStreamInferResponse(infer_response=scored)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _note(error)
                answer = service_pb2.ModelStreamInferResponse(error_message=failure_of(error).sentence)
            yield answer.SerializeToString()

    async def _score(self, request: bytes, seconds: float | None) -> Any:
        service = self._service
        if service.draining:
            raise ShuttingDownError("The server is closing; send the request to another.")
        rest, raw = split_request(request)
        parsed = _parse(service_pb2.ModelInferRequest, rest)
        call = service.call(parsed.model_name, parsed.model_version, "grpc")
        call.num_bytes = len(request)
        try:
            message = read_infer_request(parsed, raw)
        except MegalithError as error:
            service.refuse(call, error)
            raise
        if seconds is not None and message.timeout_seconds is None:
            message.timeout_seconds = max(0.0, seconds)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(result: Answer | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        service.start(call, message, done)
        try:
            answer = await future
        except asyncio.CancelledError:
            service.cancel(call)
            raise
        return infer_response(message, answer)

    def _unary(self) -> list[tuple[str, Any, Method]]:
        pb = service_pb2
        return [
            ("ServerLive", pb.ServerLiveRequest, self._live),
            ("ServerReady", pb.ServerReadyRequest, self._ready),
            ("ModelReady", pb.ModelReadyRequest, self._model_ready),
            ("ServerMetadata", pb.ServerMetadataRequest, self._metadata),
            ("ModelMetadata", pb.ModelMetadataRequest, self._model_metadata),
            ("ModelConfig", pb.ModelConfigRequest, self._config),
            ("ModelStatistics", pb.ModelStatisticsRequest, self._statistics),
            ("RepositoryIndex", pb.RepositoryIndexRequest, self._index),
            ("RepositoryModelLoad", pb.RepositoryModelLoadRequest, self._load),
            ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest, self._unload),
        ]

    async def _live(self, request: Any) -> Any:
        del request
        return service_pb2.ServerLiveResponse(live=True)

    async def _ready(self, request: Any) -> Any:
        del request
        return service_pb2.ServerReadyResponse(ready=self._service.ready())

    async def _model_ready(self, request: Any) -> Any:
        model = self._service.model(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=model.ready and not self._service.draining)

    async def _metadata(self, request: Any) -> Any:
        del request
        return service_pb2.ServerMetadataResponse(**server_metadata())

    async def _model_metadata(self, request: Any) -> Any:
        model = self._service.model(request.name, request.version)
        return json_format.ParseDict(model_metadata(model), service_pb2.ModelMetadataResponse())

    async def _config(self, request: Any) -> Any:
        model = self._service.model(request.name, request.version)
        content = {"config": model_config(self._service, model, request.version or None)}
        return json_format.ParseDict(content, service_pb2.ModelConfigResponse())

    async def _statistics(self, request: Any) -> Any:
        content = model_statistics(self._service, request.name or None, request.version or None)
        return json_format.ParseDict(content, service_pb2.ModelStatisticsResponse())

    async def _index(self, request: Any) -> Any:
        content = {"models": repository_index(self._service, request.ready)}
        return json_format.ParseDict(content, service_pb2.RepositoryIndexResponse())

    async def _load(self, request: Any) -> Any:
        await self._change("load", request)
        return service_pb2.RepositoryModelLoadResponse()

    async def _unload(self, request: Any) -> Any:
        await self._change("unload", request)
        return service_pb2.RepositoryModelUnloadResponse()

    async def _change(self, name: str, request: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._service.change_repository(name, request.model_name, parameters_of(request.parameters), done)
        await future


def _checked(request_type: Any, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(request: bytes, context: Any) -> bytes:
        try:
            response = await method(_parse(request_type, request))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await _abort(context, error)
            raise
        return bytes(response.SerializeToString())

    return handle


async def _unsupported(request: bytes, context: Any) -> bytes:
    del request
    await _abort(context, UnsupportedError("This server has not this extension; its metadata lists its own."))
    return b""


def _parse(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except (DecodeError, UnicodeDecodeError):
        raise BadRequestError(
            f"The message is no {kind.__name__}; encode it with the protocol's stubs."
        ) from None


def _note(error: Exception) -> None:
    if not isinstance(error, MegalithError):
        _log.error("call failed", exc_info=error)


async def _abort(context: Any, error: Exception) -> None:
    _note(error)
    failure = failure_of(error)
    trailing = []
    if failure.retry_after is not None:
        trailing = [("retry-after", str(failure.retry_after))]
    await context.abort(getattr(grpc.StatusCode, failure.code), failure.sentence, tuple(trailing))
