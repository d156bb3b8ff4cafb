"""What a front process checks of a request: names, types, shapes, and that tensors lie in their room.

It looks at no number within a tensor; cards do, before they compute.
"""

from __future__ import annotations

from megalith.core.errors import nearest
from megalith.export.manifest import ModelManifest
from megalith.serve.failures import BadRequestError
from megalith.serve.request import ITEM_BYTES, InferRequest, TensorDescription, TensorView
from megalith.serve.runtime.cards.task import Entry
from megalith.serve.runtime.memory.rooms import RequestRoom

_INPUTS = ("dense", "values", "lengths", "user_values", "user_lengths")


class RequestCheck:
    """The checks of one model's requests."""

    def __init__(self, manifest: ModelManifest) -> None:
        read = {name for table in manifest.tables for name in table.features}
        features = [each for each in manifest.features if each.name in read]
        self.features = tuple(each.name for each in features)
        self.user_features = tuple(each.name for each in features if each.user_side)
        self.num_dense = manifest.num_dense
        self.tasks = tuple(task.name for task in manifest.program.outputs)
        self._item_features = len(features) - len(self.user_features)

    def entry(self, request: InferRequest, room: RequestRoom) -> Entry:
        """Where the tensors of a request lie, or a BadRequestError that names what is wrong."""
        inputs = request.inputs
        for name in inputs:
            if name not in _INPUTS:
                raise BadRequestError(f"There is no input '{name}'; {nearest(name, _INPUTS)}")
        for task in request.outputs or ():
            if task not in self.tasks:
                raise BadRequestError(f"There is no output '{task}'; {nearest(task, self.tasks)}")
        apart = bool(self.user_features) and "user_lengths" in inputs
        if not apart and ("user_lengths" in inputs or "user_values" in inputs):
            if not self.user_features:
                raise BadRequestError(
                    "This model has no features of the user; send all ids in 'values' and 'lengths'."
                )
            raise BadRequestError("A request has 'user_values' and no 'user_lengths'; send both or none.")
        rows = self._item_features if apart else len(self.features)
        lengths = _view(inputs, "lengths", ("INT32",), (rows, -1), room)
        batch = lengths.shape[1]
        values = _view(inputs, "values", ("INT32", "INT64"), (-1,), room)
        dense_at = -1
        if self.num_dense:
            dense_at = room.offset + _view(inputs, "dense", ("FP32",), (batch, self.num_dense), room).offset
        user: TensorView | None = None
        user_lengths_at = -1
        if apart:
            user = _view(inputs, "user_values", ("INT32", "INT64"), (-1,), room)
            shape = (len(self.user_features), 1)
            user_lengths_at = room.offset + _view(inputs, "user_lengths", ("INT32",), shape, room).offset
        return Entry(
            batch,
            0,
            batch,
            dense_at,
            room.offset + values.offset,
            values.shape[0],
            ITEM_BYTES[values.dtype],
            room.offset + lengths.offset,
            -1 if user is None else room.offset + user.offset,
            0 if user is None else user.shape[0],
            0 if user is None else ITEM_BYTES[user.dtype],
            user_lengths_at,
        )

    def inputs(self) -> tuple[TensorDescription, ...]:
        """As the protocol lists them; those of the user are optional."""
        found = [TensorDescription("dense", "FP32", (-1, self.num_dense))] if self.num_dense else []
        found.append(TensorDescription("values", "INT64", (-1,)))
        found.append(TensorDescription("lengths", "INT32", (len(self.features), -1)))
        if self.user_features:
            found.append(TensorDescription("user_values", "INT64", (-1,)))
            found.append(TensorDescription("user_lengths", "INT32", (len(self.user_features), 1)))
        return tuple(found)

    def outputs(self) -> tuple[TensorDescription, ...]:
        """One a task."""
        return tuple(TensorDescription(task, "FP32", (-1,)) for task in self.tasks)


def _view(
    inputs: object, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...], room: RequestRoom
) -> TensorView:
    """An input of that shape, where -1 is any size."""
    assert hasattr(inputs, "get")
    view: TensorView | None = inputs.get(name)
    if view is None:
        raise BadRequestError(f"A request has no '{name}'; send {' or '.join(dtypes)} {_written(shape)}.")
    offset, num_bytes, dtype, got = view
    if dtype not in dtypes:
        raise BadRequestError(f"'{name}' is {dtype}; send {' or '.join(dtypes)}.")
    fits = len(got) == len(shape)
    count = 1
    for size, wanted in zip(got, shape, strict=False):
        fits = fits and size >= 0 and wanted in (-1, size)
        count *= size
    if not fits:
        raise BadRequestError(f"'{name}' is {list(got)}; send {_written(shape)}.")
    if num_bytes != count * ITEM_BYTES[dtype]:
        raise BadRequestError(
            f"'{name}' of {dtype} {list(got)} takes {count * ITEM_BYTES[dtype]:,} bytes, not {num_bytes:,}."
        )
    if offset < 0 or offset + num_bytes > room.num_bytes:
        raise BadRequestError(
            f"'{name}' goes from byte {offset:,} to {offset + num_bytes:,} of a body of {room.num_bytes:,}."
        )
    return view


def _written(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"
