"""Whole models as one would serve them without us: FBGEMM's quantised lookups before a dense part, and
onnxruntime from end to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from megalith.bench.serve.dense_peers import DenseRun, session
from megalith.bench.serve.shapes import Request
from megalith.bench.serve.weights import ServedWeights

if TYPE_CHECKING:
    from megalith.bench.serve.graphs import TableWay


class FbgemmLookups:
    """FBGEMM's table-batched lookups over rows of int8, on as many threads as we have."""

    def __init__(self, weights: ServedWeights, threads: int) -> None:
        # Without these it runs on one thread.
        os.environ["FBGEMM_TBE_MAX_NUM_THREADS"] = str(threads)
        os.environ["FBGEMM_TBE_MIN_TABLES_PER_THREAD"] = "1"
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )

        shape = weights.shape
        specs = [
            (f"t{place}", rows, shape.dim, SparseType.INT8, EmbeddingLocation.HOST)
            for place, rows in enumerate(shape.tables.rows)
        ]
        self.tables = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs, device="cpu", output_dtype=SparseType.FP32
        )
        self.tables.initialize_weights()
        held = self.tables.split_embedding_weights(split_scale_shifts=False)
        for own, rows in zip(held, weights.rows, strict=True):
            own[0].copy_(rows)

    def __call__(self, request: Request) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""
        found: Tensor = self.tables(request.values, request.offsets)
        return found


class LookupsThenDense:
    """Lookups of one tool, the dense part of another."""

    def __init__(self, lookups: FbgemmLookups, dense: DenseRun) -> None:
        self.lookups, self.dense = lookups, dense

    def __call__(self, request: Request) -> Tensor:
        """Scores [batch, 1]."""
        return self.dense(request.dense, self.lookups(request))


class OnnxTables:
    """The tables as onnxruntime reads them: as float32, and as codes with scale and bias beside them."""

    def __init__(self, weights: ServedWeights, kinds: Sequence[str] = ("float32", "int8")) -> None:
        import onnxruntime

        self.held: list[np.ndarray] = []
        self.values: dict[str, dict[str, Any]] = {"float32": {}, "int8": {}}
        for place in range(len(weights.rows)):
            header, codes = weights.split(place)
            arrays = {
                "float32": {f"table_{place}": weights.floats(place)} if "float32" in kinds else {},
                "int8": {
                    f"table_{place}": codes,
                    f"scales_{place}": header[:, 0].contiguous(),
                    f"biases_{place}": header[:, 1].contiguous(),
                },
            }
            for kind, tensors in arrays.items():
                for name, tensor in tensors.items():
                    # The value reads the array where it is, so that must stay.
                    self.held.append(tensor.numpy())
                    self.values[kind][name] = onnxruntime.OrtValue.ortvalue_from_numpy(self.held[-1])


class OnnxWhole:
    """Onnxruntime from ids to scores; tables are bound where they lie, not copied into the session."""

    def __init__(
        self,
        weights: ServedWeights,
        tables: OnnxTables,
        way: TableWay,
        threads: int,
        quantise: Callable[[Any], Any] = lambda graph: graph,
    ) -> None:
        from megalith.bench.serve.graphs import whole_graph

        self.shape, self.tables = weights.shape, tables
        self.session: Any = session(quantise(whole_graph(weights.shape, weights.layers, way)), threads)
        self.binding: Any = self.session.io_binding()
        for name, value in tables.values["float32" if way == "float32" else "int8"].items():
            self.binding.bind_ortvalue_input(name, value)

    def __call__(self, request: Request) -> Tensor:
        """Scores [batch, 1]."""
        self.binding.bind_cpu_input("dense", request.dense.numpy())
        for place, ids in enumerate(request.ids_of(self.shape)):
            self.binding.bind_cpu_input(f"ids_{place}", ids)
        self.binding.bind_output("score", "cpu")
        self.session.run_with_iobinding(self.binding)
        return torch.from_numpy(self.binding.copy_outputs_to_cpu()[0])
