"""`megalith export`: a trained run as the folder of a frozen model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalith import __version__
from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError, nearest
from megalith.core.files import write_atomic
from megalith.core.schema import TableSpec
from megalith.data.dataset import SCHEMA_FILE, Dataset
from megalith.data.prepare.vocabulary import FOLDER as VOCABULARY
from megalith.export.backends.kernels.as_trained import is_reduced
from megalith.export.folder import FrozenModel, list_files, new_model, table_file, write_manifest
from megalith.export.gate.costs import with_precision
from megalith.export.gate.gate import Gate, GateInputs, GateResult
from megalith.export.gate.samples import GateBatch
from megalith.export.manifest import (
    CHECKS_FILE,
    DENSE_FILE,
    INPUTS,
    REPORT,
    Contract,
    FeatureRecord,
    FrozenTableRecord,
    ModelManifest,
    TablePrecision,
)
from megalith.export.program import Linear, ModelProgram, Precision
from megalith.export.stored_weights import PRODUCTS, reduced_weights
from megalith.export.tables import TableSource, freeze_table
from megalith.export.tensor_file import read_tensors, write_tensors
from megalith.export.trace import trace_model
from megalith.ops.native import simd_level
from megalith.train.checkpoints import Checkpoint
from megalith.train.evaluation.score_run import same_features
from megalith.train.loaders import choose_split, eval_loader, open_dataset
from megalith.train.pipeline import Pipeline
from megalith.train.scoring.scorer import Scorer

EVERY_TABLE = "*"
AS_TRAINED = "native:dense=torch"
"""What runs a model frozen without loss: layers as in training, so that scores are the run's bits."""
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FreezeRequest:
    """What a user asks `megalith export` for."""

    run: Path
    out: Path
    tables: Mapping[str, TablePrecision] = field(default_factory=lambda: {EVERY_TABLE: "int8"})
    """Precision by table; `*` is every table not named."""
    dense: Precision = "float32"
    checkpoint: Checkpoint = None
    split: str | None = None
    data: Path | None = None
    budget: float = 0.0005
    """Highest share by which normalized entropy may rise."""
    user: tuple[str, ...] = ()
    """Features that are the same for all samples of a request."""
    name: str | None = None
    gate: bool = True
    trust_code: bool = False


class _WrittenTensors:
    """Tensors of a folder that is being written."""

    def __init__(
        self, folder: Path, records: Sequence[FrozenTableRecord], weights: Mapping[str, Tensor]
    ) -> None:
        self._folder, self._weights = folder, weights
        self._files = {record.name: record.file for record in records}

    def table(self, name: str) -> dict[str, Tensor]:
        """Rows as they are in the file."""
        tensors = read_tensors(self._folder / self._files[name])
        return {key.removeprefix(f"{name}/"): tensor for key, tensor in tensors.items()}

    def weights(self) -> Mapping[str, Tensor]:
        """Those of the program."""
        return self._weights


def freeze_run(request: FreezeRequest, tell: Told = lambda _: None) -> dict[str, Any]:
    """Writes the folder, which appears when it is complete and has passed its gate; returns what is in it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("A run is exported by one process; run without torchrun.")
    scorer = Scorer(request.run, request.checkpoint, trusted=request.trust_code)
    schema = scorer.dataset.schema
    _known("--user", request.user, schema.feature_names)
    held_out = _held_out(request, scorer) if request.gate else None
    tell("loading the run")
    learner = scorer.learner
    _known("--tables", [name for name in request.tables if name != EVERY_TABLE], _names(learner.tables))
    width = sum(table.output_dim for table in learner.tables)
    traced = trace_model(learner.dense, len(schema.numeric), width)
    states = learner.embeddings.table_states()
    with new_model(request.out) as folder:
        records, rows = [], {}
        for number, spec in enumerate(learner.tables):
            tell(f"encoding table {spec.name}")
            source = TableSource(spec, states[spec.name], states.get(f"{spec.name}.unknown"))
            precision = request.tables.get(spec.name, request.tables.get(EVERY_TABLE, "int8"))
            records.append(freeze_table(source, precision, folder / table_file(number)))
            rows[spec.name] = source.num_rows
        result: GateResult | None = None
        if held_out is not None:
            dataset, split = held_out
            inputs = GateInputs(
                batches=lambda: _batches(scorer, dataset, split),
                split=split,
                budget=request.budget,
                features=schema.feature_names,
                records=records,
                rows=rows,
                tensors=_WrittenTensors(folder, records, traced.weights),
                program=traced.program,
                precision=request.dense,
                as_trained=_keep_all(learner.tables, records),
            )
            result = Gate(inputs, tell).run()
            program = result.program
        else:
            program = _all_layers(traced.program, request.dense)
        tell("writing the folder")
        as_trained = _keep_all(learner.tables, records) and not is_reduced(program)
        backend = AS_TRAINED if as_trained else "native"
        manifest = _write(folder, request, scorer, records, program, traced.weights, result, backend)
    return _summary(request, FrozenModel(request.out, verify=False), manifest, rows)


def _write(
    folder: Path,
    request: FreezeRequest,
    scorer: Scorer,
    records: Sequence[FrozenTableRecord],
    program: ModelProgram,
    weights: Mapping[str, Tensor],
    result: GateResult | None,
    backend: str,
) -> ModelManifest:
    write_tensors(folder / DENSE_FILE, reduced_weights(program, weights, PRODUCTS))
    if result is not None:
        write_tensors(folder / CHECKS_FILE, result.checks)
    _copy_inputs(scorer, folder / INPUTS)
    report = {"gate": None} if result is None else result.report
    write_atomic(folder / REPORT, json.dumps(report, indent=1) + "\n")
    lengths = {} if result is None else result.average_lengths
    manifest = ModelManifest(
        name=request.name or request.out.name,
        step=scorer.step,
        num_dense=len(scorer.dataset.schema.numeric),
        features=tuple(
            FeatureRecord(
                name=feature.name,
                max_length=feature.max_length,
                is_raw=feature.is_raw,
                user_side=feature.name in request.user,
                average_length=lengths.get(feature.name),
            )
            for feature in scorer.dataset.schema.categorical
        ),
        tables=tuple(records),
        program=program,
        contract=_contract(program),
        gate=None if result is None else result.record,
        backend=backend,
        files=list_files(folder),
    )
    write_manifest(folder, manifest)
    return manifest


def _keep_all(tables: Sequence[TableSpec], records: Sequence[FrozenTableRecord]) -> bool:
    """Whether rows are frozen as they were trained, so that scores can be the run's to the bit."""
    pairs = zip(tables, records, strict=True)
    return all(record.precision in ("float32", table.dtype) for table, record in pairs)


def _contract(program: ModelProgram) -> Contract:
    used = {each.precision for each in program.operations if isinstance(each, Linear)}
    return Contract(
        products=PRODUCTS if "int8" in used else "bfloat16" if "bfloat16" in used else "float32",
        simd=simd_level(),
        versions={"megalith": __version__, "torch": torch.__version__},
    )


def _all_layers(program: ModelProgram, precision: Precision) -> ModelProgram:
    layers = [each.output for each in program.operations if isinstance(each, Linear)]
    return with_precision(program, dict.fromkeys(layers, precision))


def _copy_inputs(scorer: Scorer, target: Path) -> None:
    """Schema and vocabulary, from where the run has them; they are checked first."""
    if scorer.run.inputs.exists():
        scorer.run.inputs.check_vocabulary()
    source = scorer.dataset.folder
    target.mkdir()
    shutil.copyfile(source / SCHEMA_FILE, target / SCHEMA_FILE)
    vocabulary = sorted(path for path in (source / VOCABULARY).glob("*") if path.is_file())
    if vocabulary:
        (target / VOCABULARY).mkdir()
    for path in vocabulary:
        shutil.copyfile(path, target / VOCABULARY / path.name)


def _held_out(request: FreezeRequest, scorer: Scorer) -> tuple[Dataset, str]:
    """The samples of the gate, which the run was not trained on."""
    config = scorer.recipe.data
    path = request.data or config.path
    waive = "or freeze without a check with --no-gate"
    from_raw = request.data is None and config.raw is not None
    if not from_raw and not path.exists():
        raise DataError(
            f"{path}, which {request.run} was trained on, is not there any more, so the gate has no samples; "
            f"name a prepared data set with --data, {waive}."
        )
    held_out = open_dataset(config, scorer.dataset.folder) if from_raw else Dataset(path)
    dataset = same_features(held_out, scorer.dataset, request.run)
    split = request.split or choose_split(config, dataset)
    if split is None:
        raise ConfigError(
            f"{dataset.folder} has no split valid or test for the gate; name one with --split, {waive}."
        )
    if not dataset.split(split).rows:
        raise DataError(f"Split '{split}' of {dataset.folder} has no rows; choose another split.")
    if split in config.train and request.data is None:
        raise ConfigError(
            f"{request.run} was trained on split '{split}'; name another with --split, {waive}."
        )
    return dataset, split


def _batches(scorer: Scorer, dataset: Dataset, split: str) -> Iterator[GateBatch]:
    """Held-out samples with what the trained model makes of them."""
    learner = scorer.learner
    learner.dense.eval()
    depth = max(1, scorer.recipe.train.pipeline if learner.embeddings.prepares_ahead else 0)
    pipeline = Pipeline(
        eval_loader(scorer.recipe.data, dataset, split, Ranks()), learner.stages(trains=False), depth=depth
    )
    ended = False
    try:
        for prepared in pipeline:
            batch = prepared.batch
            with torch.inference_mode():
                pending = learner.embeddings.start_lookup(prepared.resolved)
                pooled = learner.embeddings.finish_lookup(pending).pooled
                logits = learner.dense(batch.dense, pooled)
            weights = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
            yield GateBatch(batch.dense, batch.values, batch.offsets, batch.labels, weights, pooled, logits)
        ended = True
    finally:
        if ended:
            pipeline.close()
        else:
            pipeline.abandon()


def _summary(
    request: FreezeRequest, model: FrozenModel, manifest: ModelManifest, rows: Mapping[str, int]
) -> dict[str, Any]:
    whole = sum(4 * rows[table.name] * table.dim for table in manifest.tables)
    tables = sum(table.bytes for table in manifest.tables)
    return {
        "run": str(request.run),
        "out": str(request.out),
        "name": manifest.name,
        "step": manifest.step,
        "bytes": model.bytes(),
        "table_bytes": tables,
        "float32_table_bytes": whole,
        "table_share": tables / whole if whole else None,
        **model.report(),
    }


def _names(tables: Sequence[Any]) -> tuple[str, ...]:
    return tuple(table.name for table in tables)


def _known(option: str, names: Sequence[str], choices: Sequence[str]) -> None:
    for name in names:
        if name not in choices:
            raise ConfigError(f"{option} names '{name}'; {nearest(name, list(choices))}")
