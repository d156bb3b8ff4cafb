"""Requests on the wire are read as the stubs read them, tensors apart from the rest."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from megalith.serve.failures import RequestError
from megalith.serve.grpc.wire import split_request

_texts = st.text(max_size=8)
_parameters = st.builds(service_pb2.InferParameter, int64_param=st.integers(-(2**63), 2**63 - 1)) | st.builds(
    service_pb2.InferParameter, string_param=_texts
)
_inputs = st.builds(
    service_pb2.ModelInferRequest.InferInputTensor,
    name=_texts,
    datatype=_texts,
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)
_requests = st.builds(
    service_pb2.ModelInferRequest,
    model_name=_texts,
    model_version=_texts,
    id=_texts,
    parameters=st.dictionaries(_texts, _parameters, max_size=2),
    inputs=st.lists(_inputs, max_size=3),
    raw_input_contents=st.lists(st.binary(max_size=300), max_size=4),
)


def rejoined(message: bytes) -> Any:
    """What our reader makes of a message, as the stubs would have it."""
    rest, raw = split_request(message)
    parsed = service_pb2.ModelInferRequest.FromString(rest)
    assert not parsed.raw_input_contents
    parsed.raw_input_contents.extend(bytes(each) for each in raw)
    return parsed


@given(_requests)
@settings(deadline=None, max_examples=200)
def test_messages_are_read_as_the_stubs_read_them(request: Any) -> None:
    assert rejoined(request.SerializeToString()) == request


@given(st.lists(_requests, min_size=2, max_size=3))
@settings(deadline=None, max_examples=50)
def test_messages_one_after_the_other_are_merged(requests: list[Any]) -> None:
    joined = b"".join(request.SerializeToString() for request in requests)
    assert rejoined(joined) == service_pb2.ModelInferRequest.FromString(joined)


@given(_requests, st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_messages_are_refused_or_read_alike(request: Any, data: Any) -> None:
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if message:
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    try:
        plain = service_pb2.ModelInferRequest.FromString(cut)
    except DecodeError:
        plain = None
    try:
        ours = rejoined(cut)
    except (DecodeError, RequestError):
        ours = None
    assert (ours is None) == (plain is None)
    assert ours == plain


def test_tensors_are_not_copied() -> None:
    request = service_pb2.ModelInferRequest(model_name="a", raw_input_contents=[b"x" * 1000, b"y" * 10])
    message = request.SerializeToString()
    _, raw = split_request(message)
    assert [each.obj is message for each in raw] == [True, True]


@pytest.mark.parametrize("message", [b"\xff" * 11, b"\x08", b"\x3a\x05ab", b"\x00\x00", b"\x0d\x01"])
def test_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(RequestError):
        split_request(message)
