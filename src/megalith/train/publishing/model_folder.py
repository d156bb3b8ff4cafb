"""The folder of a frozen model around its tables: weights, schema, vocabulary, report, manifest.

Exports write it with what their gate found; published snapshots of a run that still trains have none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from megalith.core.files import write_atomic
from megalith.core.schema import TableSpec
from megalith.data.dataset import SCHEMA_FILE, Dataset
from megalith.data.prepare.vocabulary import FOLDER as VOCABULARY
from megalith.export.backends.kernels.as_trained import is_reduced
from megalith.export.folder import list_files, write_manifest
from megalith.export.gate.costs import with_precision
from megalith.export.gate.gate import GateResult
from megalith.export.manifest import (
    CHECKS_FILE,
    DENSE_FILE,
    INPUTS,
    REPORT,
    Contract,
    FeatureRecord,
    FrozenTableRecord,
    ModelManifest,
)
from megalith.export.program import Linear, ModelProgram, Precision
from megalith.export.stored_weights import PRODUCTS, reduced_weights
from megalith.export.tensor_file import write_tensors
from megalith.export.trace import TracedModel
from megalith.ops.native import simd_level
from megalith.train.run.inputs import RunInputs

EVERY_TABLE = "*"
AS_TRAINED = "native:dense=torch"
"""What runs a model frozen without loss: layers as in training, so that scores are the run's bits."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What is frozen: whose it is, how far it was trained, and the data that it was trained on."""

    name: str
    step: int
    dataset: Dataset
    inputs: RunInputs
    tables: Sequence[TableSpec]
    user: tuple[str, ...] = ()
    """Features that are the same for all samples of a request."""


def write_rest(
    folder: Path,
    model: TrainedModel,
    records: Sequence[FrozenTableRecord],
    traced: TracedModel,
    result: GateResult | None = None,
) -> ModelManifest:
    """Writes all but the tables, which are there; `traced` has the precision of each layer."""
    program = traced.program
    write_tensors(folder / DENSE_FILE, reduced_weights(program, traced.weights, PRODUCTS))
    if result is not None:
        write_tensors(folder / CHECKS_FILE, result.checks)
    _copy_inputs(model, folder / INPUTS)
    report = {"gate": None} if result is None else result.report
    write_atomic(folder / REPORT, json.dumps(report, indent=1) + "\n")
    lengths = {} if result is None else result.average_lengths
    schema = model.dataset.schema
    as_trained = keeps_all(model.tables, records) and not is_reduced(program)
    manifest = ModelManifest(
        name=model.name,
        step=model.step,
        num_dense=len(schema.numeric),
        features=tuple(
            FeatureRecord(
                name=feature.name,
                max_length=feature.max_length,
                is_raw=feature.is_raw,
                user_side=feature.name in model.user,
                average_length=lengths.get(feature.name),
            )
            for feature in schema.categorical
        ),
        tables=tuple(records),
        program=program,
        contract=_contract(program),
        gate=None if result is None else result.record,
        backend=AS_TRAINED if as_trained else "native",
        files=list_files(folder),
    )
    write_manifest(folder, manifest)
    return manifest


def keeps_all(tables: Sequence[TableSpec], records: Sequence[FrozenTableRecord]) -> bool:
    """Whether rows are frozen as they were trained, so that scores can be the run's to the bit."""
    pairs = zip(tables, records, strict=True)
    return all(record.precision in ("float32", table.dtype) for table, record in pairs)


def all_layers(program: ModelProgram, precision: Precision) -> ModelProgram:
    """The program with every layer in one precision."""
    layers = [each.output for each in program.operations if isinstance(each, Linear)]
    return with_precision(program, dict.fromkeys(layers, precision))


def _contract(program: ModelProgram) -> Contract:
    used = {each.precision for each in program.operations if isinstance(each, Linear)}
    return Contract(
        products=PRODUCTS if "int8" in used else "bfloat16" if "bfloat16" in used else "float32",
        simd=simd_level(),
        versions={"megalith": version("megalith"), "torch": torch.__version__},
    )


def _copy_inputs(model: TrainedModel, target: Path) -> None:
    """Schema and vocabulary, from where the run has them; they are checked first."""
    if model.inputs.exists():
        model.inputs.check_vocabulary()
    source = model.dataset.folder
    target.mkdir()
    shutil.copyfile(source / SCHEMA_FILE, target / SCHEMA_FILE)
    vocabulary = sorted(path for path in (source / VOCABULARY).glob("*") if path.is_file())
    if vocabulary:
        (target / VOCABULARY).mkdir()
    for path in vocabulary:
        shutil.copyfile(path, target / VOCABULARY / path.name)
