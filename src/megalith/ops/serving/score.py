"""Whole requests in one native call: what is wrong with them, pooled lookups, the dense program.

Each of the three is what it is alone, bit by bit: `FrozenLookup` and then `DenseProgram.run`. A request of
one sample takes the core some microseconds, and so would every further object that Python makes for it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops import native
from megalith.ops.dense.program import DenseProgram
from megalith.ops.frozen.lookup import FrozenLookup

InputKind = Literal["numbers", "pooled"]
INPUT_KINDS: tuple[InputKind, ...] = ("numbers", "pooled")
"""What an input of a program may be, in the order of their numbers in csrc/serving/score.h."""


class ScoreProgram:
    """Some tables and the program that reads their pooled vectors. Any number of threads may run it."""

    def __init__(
        self, lookup: FrozenLookup, program: DenseProgram, inputs: Sequence[InputKind], num_numbers: int
    ) -> None:
        """`inputs` says what each input of the program is; the numbers of a sample are `num_numbers`."""
        wanted = {"numbers": num_numbers, "pooled": lookup.output_dim}
        for kind, (name, columns) in zip(inputs, program.inputs, strict=True):
            if wanted[kind] != columns:
                raise ConfigError(f"Input '{name}' has {columns} columns, and {kind} are {wanted[kind]}.")
        self._lookup, self._program = lookup, program
        self._features = len(lookup.feature_names)
        self._numbers, self._width = num_numbers, program.output_columns
        kinds = (ctypes.c_int64 * max(1, len(inputs)))(*(INPUT_KINDS.index(kind) for kind in inputs))
        core, handle = native.library(), ctypes.c_void_p()
        core.mg_score_create(
            *(lookup.handle, program.handle, self._features, num_numbers, lookup.output_dim),
            *(kinds, len(inputs), ctypes.addressof(handle)),
        )
        self._handle, self._workers, self._call = handle.value, program.workers, core.mg_score_run
        weakref.finalize(self, core.mg_score_destroy, self._handle)

    def run(self, dense: Tensor | None, values: Tensor | None, lengths: Tensor | None) -> Tensor | None:
        """The outputs, float32 [batch, columns], or [batch] where there is one column.

        `dense` is float32 [batch, numbers], `values` int32 or int64 [ids], `lengths` int32 [features, batch],
        each in one piece. None where a request is anything else, has no samples, or is wrong: what is wrong,
        whoever checks it step by step can say.
        """
        if values is None or lengths is None or lengths.dtype is not torch.int32 or lengths.dim() != 2:
            return None
        features, batch = lengths.shape
        kind = values.dtype
        index_bytes = 4 if kind is torch.int32 else 8 if kind is torch.int64 else 0
        if features != self._features or not batch or not index_bytes or values.dim() != 1:
            return None
        if not (values.is_contiguous() and lengths.is_contiguous() and values.is_cpu and lengths.is_cpu):
            return None
        numbers = None
        if self._numbers:
            if dense is None or dense.dtype is not torch.float32 or dense.shape != (batch, self._numbers):
                return None
            if not (dense.is_contiguous() and dense.is_cpu):
                return None
            numbers = dense.data_ptr()
        out = torch.empty(batch) if self._width == 1 else torch.empty(batch, self._width)
        fault = ctypes.c_int32()
        self._call(
            *(self._handle, numbers, values.data_ptr(), index_bytes, values.numel()),
            *(lengths.data_ptr(), batch, self._workers, out.data_ptr(), ctypes.byref(fault)),
        )
        return None if fault.value else out

    def scratch_bytes(self) -> int:
        """Of offsets and pooled vectors that are kept for the next requests."""
        count = ctypes.c_int64()
        native.library().mg_score_bytes(self._handle, ctypes.addressof(count))
        return count.value
