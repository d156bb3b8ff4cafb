"""Small frozen models in folders, requests for them, and what the backend answers in this process."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megalith.export.backends.base import LoadSettings, ModelSource
from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.folder import FrozenModel, list_files, new_model, table_file, write_manifest
from megalith.export.manifest import CHECKS_FILE, DENSE_FILE
from megalith.export.tensor_file import write_tensors
from megalith.serve.engine import Engine, Pending
from megalith.serve.request import Answer, InferRequest, TensorView

_TYPES = {torch.float32: "FP32", torch.int32: "INT32", torch.int64: "INT64"}


def write_model(folder: Path, model: ModelInMemory | None = None, checks: int = 8) -> Path:
    """The folder of a model of every operation and every kind of table, or of one that is given."""
    model = model or probe_model()
    tables = {f"{name}/{key}": tensor for name, held in model.tables.items() for key, tensor in held.items()}
    with new_model(folder) as target:
        write_tensors(target / table_file(0), tables)
        write_tensors(target / DENSE_FILE, dict(model.dense))
        if checks:
            request = RequestMaker(model, "whole").request(checks, seed=99)
            asked = {key: value for key, value in request._asdict().items() if value is not None}
            outputs = {f"output/{task}": value for task, value in in_process(model, request).items()}
            write_tensors(target / CHECKS_FILE, {**asked, **outputs})
        write_manifest(target, model.manifest.model_copy(update={"files": list_files(target)}))
    return folder


def in_process(model: ModelSource, request: ScoreRequest) -> dict[str, torch.Tensor]:
    """What the backend answers without any server."""
    return NativeBackend().load(model, "whole", LoadSettings()).run(request)


def opened(folder: Path) -> FrozenModel:
    """The model of a folder."""
    return FrozenModel(folder)


def submit(
    engine: Engine, model: str, request: ScoreRequest, done: Any, head: int = 0, **fields: Any
) -> Pending:
    """Sends a request as a server does: bytes into a room, then a description of them."""
    tensors = {key: value.contiguous() for key, value in request._asdict().items() if value is not None}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    room = engine.reserve(head + size, head)
    views, at = {}, head
    for name, tensor in tensors.items():
        content = tensor.numpy().tobytes()
        room.memory[at : at + len(content)] = content
        views[name] = TensorView(at, len(content), _TYPES[tensor.dtype], tuple(tensor.shape))
        at += len(content)
    return engine.submit(room, InferRequest(model, views, **fields), done)


def ask(engine: Engine, model: str, request: ScoreRequest, **fields: Any) -> Answer:
    """Sends a request and waits for its answer; a failure is raised."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    submit(engine, model, request, answers.put, **fields)
    answer = answers.get(timeout=120)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, Answer)
    return answer


def equal(answer: Answer, wanted: dict[str, torch.Tensor]) -> bool:
    """Whether an answer has these outputs bit for bit."""
    return set(answer.outputs) == set(wanted) and all(
        np.array_equal(answer.outputs[task], wanted[task].numpy()) for task in wanted
    )
