"""`megalith export`: a trained run as the folder of a frozen model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError, nearest
from megalith.data.dataset import Dataset
from megalith.export.folder import FrozenModel, new_model, table_file
from megalith.export.gate.gate import Gate, GateInputs, GateResult
from megalith.export.gate.samples import GateBatch
from megalith.export.manifest import (
    FrozenTableRecord,
    ModelManifest,
    TablePrecision,
)
from megalith.export.program import Precision
from megalith.export.tables import TableSource, freeze_table
from megalith.export.tensor_file import read_tensors
from megalith.export.trace import TracedModel, trace_model
from megalith.train.checkpoints import Checkpoint
from megalith.train.evaluation.score_run import same_features
from megalith.train.loaders import choose_split, eval_loader, open_dataset
from megalith.train.pipeline import Pipeline
from megalith.train.publishing.model_folder import (
    EVERY_TABLE,
    TrainedModel,
    all_layers,
    keeps_all,
    write_rest,
)
from megalith.train.scoring.scorer import Scorer

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
                as_trained=keeps_all(learner.tables, records),
            )
            result = Gate(inputs, tell).run()
            program = result.program
        else:
            program = all_layers(traced.program, request.dense)
        tell("writing the folder")
        model = TrainedModel(
            request.name or request.out.name,
            scorer.step,
            scorer.dataset,
            scorer.run.inputs,
            learner.tables,
            request.user,
        )
        manifest = write_rest(folder, model, records, TracedModel(program, traced.weights), result)
    return _summary(request, FrozenModel(request.out, verify=False), manifest, rows)


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
