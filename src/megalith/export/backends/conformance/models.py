"""Small models in memory that hold every operation and every kind of table: what the suite runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megalith.export.backends.conformance.programs import DIM, every_operation, weights_of
from megalith.export.manifest import Contract, FeatureRecord, FrozenTableRecord, ModelManifest
from megalith.export.program import Columns, Linear, ModelProgram, ProgramOutput
from megalith.export.stored_weights import reduced_weights
from megalith.ops.dense.quantise import Products
from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.prefix import PrefixFormat, encode_prefix_rows, stored_starts

NUM_DENSE, ROWS, CHUNK = 5, 40, 4
FEATURES = ("a", "user", "b", "c", "d", "user_history", "e", "f")
NamedTable = tuple[FrozenTableRecord, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class ModelInMemory:
    """A frozen model without a folder."""

    manifest: ModelManifest
    tables: Mapping[str, Mapping[str, Tensor]]
    dense: Mapping[str, Tensor]
    checked: Mapping[str, Tensor] = field(default_factory=dict)

    def table(self, name: str) -> Mapping[str, Tensor]:
        """The tensors of a table."""
        return self.tables[name]

    def weights(self) -> Mapping[str, Tensor]:
        """The tensors of the program."""
        return self.dense

    def checks(self) -> Mapping[str, Tensor]:
        """Samples with their outputs, where there are some."""
        return self.checked


def probe_models() -> Iterator[ModelInMemory]:
    """The models that `conforms` runs: one for each precision of the dense part."""
    for precision, products in (
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("int8", "u8s7"),
        ("int8", "u8s8"),
    ):
        yield probe_model(precision, products)


def probe_model(precision: str = "float32", products: str = "float32") -> ModelInMemory:
    """A model of every operation over tables of every kind."""
    tables = every_table()
    columns = sum(record.dim * len(record.features) for record, _ in tables)
    program = every_operation(NUM_DENSE, columns, precision)
    features = [FeatureRecord(name=name, user_side=name.startswith("user")) for name in FEATURES]
    manifest = manifest_of(f"probe-{products}", program, products, NUM_DENSE, features, tables)
    held = {record.name: tensors for record, tensors in tables}
    codes: Products = "u8s8" if products == "u8s8" else "u8s7"
    return ModelInMemory(manifest, held, reduced_weights(program, weights_of(program), codes))


def manifest_of(
    name: str,
    program: ModelProgram,
    products: str,
    num_dense: int,
    features: Sequence[FeatureRecord] = (),
    tables: Sequence[NamedTable] = (),
) -> ModelManifest:
    """A manifest of what is given, without files."""
    content: dict[str, Any] = {"products": products, "simd": "portable", "versions": {}}
    return ModelManifest(
        name=name,
        step=1,
        num_dense=num_dense,
        features=tuple(features),
        tables=tuple(record for record, _ in tables),
        program=program,
        contract=Contract(**content),
        files={},
    )


def every_table() -> list[NamedTable]:
    """Tables of every precision, pooling and kind; two are shared by features, some of them the user's."""
    return [
        random_table("t_int8", ("a", "b"), "int8", seed=1),
        random_table("t_int4", ("user",), "int4", "mean", seed=2),
        random_table("t_half", ("c",), "float16", "max", seed=3),
        random_table("t_float", ("d",), "float32", seed=4, padding_index=3),
        random_table("t_adaptive", ("e", "user_history"), "int8", seed=5, kind="adaptive"),
        random_table("t_dynamic", ("f",), "int8", seed=6, kind="dynamic", unknown=2),
    ]


def random_table(
    name: str,
    features: tuple[str, ...],
    precision: Any,
    pooling: Any = "sum",
    *,
    seed: int = 0,
    rows: int = ROWS,
    dim: int = DIM,
    kind: str = "plain",
    **fields: Any,
) -> NamedTable:
    """The record of a table of random rows, and its tensors; `kind` may be adaptive or dynamic."""
    weights = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)) * 0.3
    form = RowFormat(precision, "float16" if precision.startswith("int") else None)
    if kind == "adaptive":
        layout = PrefixFormat(form, dim, CHUNK)
        chunks = torch.arange(rows) % (layout.num_chunks + 1)
        held, starts = encode_prefix_rows(weights, chunks, layout, name, encode_rows_twin)
        tensors = {"rows": held, "starts": stored_starts(starts)}
        fields |= {"chunk": CHUNK, "start_bytes": layout.unit}
    else:
        tensors = {"rows": encode_rows_twin(weights, form)}
        fields |= {"row_bytes": form.row_bytes(dim)}
    if kind == "dynamic":
        tensors["ids"] = torch.arange(rows) * 7 - 50
        fields |= {"ids": "listed"}
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    record = FrozenTableRecord(
        name=name,
        rows=rows,
        dim=dim,
        features=features,
        pooling=pooling,
        precision=precision,
        scale=form.scale,
        file="tables-00000.safetensors",
        bytes=total,
        **fields,
    )
    return record, tensors


def one_layer(precision: Any, columns: int, products: str) -> ModelInMemory:
    """A linear layer with weights at their extremes, whose outputs are its own columns."""
    draw = torch.Generator().manual_seed(columns)
    usual = torch.randn(4, columns, generator=draw)
    largest = torch.ones(1, columns)
    weight = torch.cat([usual, largest, -largest, largest * 0, usual[:1] * 1e-30, usual[1:2] * 1e4])
    count = len(weight)
    layer = Linear(inputs=("dense",), output="y", weight="w", bias="b", precision=precision)
    picks = [Columns(inputs=("y",), output=f"y{n}", first=n, last=n + 1) for n in range(count)]
    program = ModelProgram(
        inputs={"dense": columns},
        operations=(layer, *picks),
        outputs=tuple(ProgramOutput(name=f"out{n}", value=f"y{n}", kind="number") for n in range(count)),
    )
    manifest = manifest_of(f"layer-{products}", program, products, columns)
    return ModelInMemory(manifest, {}, {"w": weight, "b": torch.randn(count, generator=draw)})
