"""Decides whether a frozen model may be used: how much normalized entropy it loses, and which layers may be
in few bits.

All layers begin in the precision that was asked for. Where the whole model loses more than its budget, the
layer that costs most alone is left in float32, and so on, until it does not or none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import QualityError
from megalith.export.frozen_part import FrozenTensors, frozen_lookup
from megalith.export.gate.costs import (
    CostMeter,
    PartCost,
    Told,
    pooled_columns,
    with_precision,
    worst_first,
)
from megalith.export.gate.frozen_dense import FrozenDense
from megalith.export.gate.samples import GateBatch, KeptSamples, Quality, quality, room_for
from megalith.export.manifest import FrozenTableRecord, GateRecord
from megalith.export.program import Linear, ModelProgram, Precision

CHECK_SAMPLES = 64
"""Held-out samples that a model carries."""


class GateInputs(NamedTuple):
    """What a gate is asked about."""

    batches: Callable[[], Iterator[GateBatch]]
    """All held-out samples, from the beginning, each time it is called."""
    split: str
    budget: float
    features: Sequence[str]
    records: Sequence[FrozenTableRecord]
    rows: Mapping[str, int]
    """Rows that the trained tables have."""
    tensors: FrozenTensors
    program: ModelProgram
    """With all layers in float32."""
    precision: Precision
    """That layers are wanted in."""
    as_trained: bool = False
    """Tables lose nothing, so that layers of float32 are run as in training: scores are the run's."""


class GateResult(NamedTuple):
    """A model that passed."""

    program: ModelProgram
    record: GateRecord
    report: dict[str, Any]
    average_lengths: dict[str, float]
    checks: dict[str, Tensor]
    """The first samples, and the outputs of the frozen model."""


class _Pass(NamedTuple):
    trained: Quality
    frozen: Quality
    kept: KeptSamples
    lengths: Tensor
    checks: dict[str, Tensor]


class Gate:
    """Measures a frozen model on held-out samples."""

    def __init__(self, inputs: GateInputs, tell: Told) -> None:
        self.inputs, self.tell = inputs, tell
        self.weights = inputs.tensors.weights()
        self.lookup = frozen_lookup(inputs.tensors, inputs.records, inputs.features)

    def run(self) -> GateResult:
        """The model as it may be used; a QualityError where none is within the budget."""
        inputs = self.inputs
        layers = [each for each in inputs.program.operations if isinstance(each, Linear)]
        wanted = {} if inputs.precision == "float32" else {each.output: inputs.precision for each in layers}
        program = with_precision(inputs.program, wanted)
        found = self._pass(program)
        meter = CostMeter(inputs.program, self.weights, found.kept)
        tables = self._table_costs(meter)
        layer_costs = [self._layer_cost(meter, each, wanted[each.output]) for each in layers if wanted]
        left: list[str] = []
        for cost in worst_first(layer_costs):
            if found.frozen.loss(found.trained) <= inputs.budget:
                break
            left.append(cost.name)
            kept = {name: precision for name, precision in wanted.items() if name not in left}
            program = with_precision(inputs.program, kept)
            self.tell(f"leaving layer {cost.name} in float32")
            last = len(left) == len(layer_costs)
            if last or meter.whole(program).loss(meter.trained) <= inputs.budget:
                found = self._pass(program)
        self._decide(found, tables)
        return self._result(program, found, tables, layer_costs, left)

    def _pass(self, program: ModelProgram) -> _Pass:
        """All held-out samples through the trained and the frozen model."""
        parts: list[Tensor] = []
        kept: list[KeptSamples] = []
        room = room_for(sum(each.dim * len(each.features) for each in self.inputs.records))
        lengths = torch.zeros(len(self.inputs.features), dtype=torch.float64)
        done, checks = 0, dict[str, Tensor]()
        frozen_dense = FrozenDense(program, self.weights, as_trained=self.inputs.as_trained)
        for batch in self.inputs.batches():
            with torch.inference_mode():
                pooled = self.lookup(batch.values, batch.offsets)
                outputs = frozen_dense(batch.dense, pooled)
            logits, size = outputs.logits[:, 0], len(batch.labels)
            parts.append(torch.stack([batch.logits, logits, batch.labels, batch.weights]))
            by_feature = batch.offsets.diff().view(len(lengths), size) if len(lengths) else torch.zeros(0, 0)
            lengths += by_feature.sum(dim=1)
            if not checks:
                checks = self._checks(batch, by_feature, outputs.served)
            if done < room:
                few = slice(0, room - done)
                kept.append(
                    KeptSamples(
                        *(batch.dense[few], batch.labels[few], batch.weights[few], batch.pooled[few]),
                        *(pooled[few], batch.logits[few]),
                    )
                )
            done += size
            self.tell(f"gate on split {self.inputs.split}: {done:,} samples")
        trained, frozen, labels, weights = torch.cat(parts, dim=1)
        return _Pass(
            quality(trained, labels, weights),
            quality(frozen, labels, weights),
            KeptSamples.of(kept),
            lengths / max(1, done),
            checks,
        )

    def _checks(self, batch: GateBatch, lengths: Tensor, served: Tensor) -> dict[str, Tensor]:
        count = min(CHECK_SAMPLES, len(batch.labels))
        size = len(batch.labels)
        starts = batch.offsets[:-1].view(-1, size)
        values = [
            batch.values[int(starts[feature, 0]) : int(starts[feature, 0] + lengths[feature, :count].sum())]
            for feature in range(len(lengths))
        ]
        tensors = {
            "dense": batch.dense[:count].contiguous(),
            "values": torch.cat([torch.empty(0, dtype=torch.int64), *values]),
            "lengths": lengths[:, :count].to(torch.int32).contiguous(),
        }
        for column, task in enumerate(self.inputs.program.outputs):
            tensors[f"output/{task.name}"] = served[:count, column].contiguous()
        return tensors

    def _table_costs(self, meter: CostMeter) -> list[PartCost]:
        columns = pooled_columns(self.inputs.records)
        costs = []
        for record in self.inputs.records:
            self.tell(f"cost of table {record.name}")
            costs.append(meter.table(record, columns[record.name], self.inputs.rows[record.name]))
        return costs

    def _layer_cost(self, meter: CostMeter, layer: Linear, precision: Precision) -> PartCost:
        self.tell(f"cost of layer {layer.output}")
        return meter.layer(layer, precision)

    def _decide(self, found: _Pass, tables: Sequence[PartCost]) -> None:
        loss, budget = found.frozen.loss(found.trained), self.inputs.budget
        if loss <= budget:
            return
        worst = worst_first(tables)[0]
        raise QualityError(
            f"The frozen model raises NE on split '{self.inputs.split}' by {loss:.4%}, from "
            f"{found.trained.ne:.6f} to {found.frozen.ne:.6f}, and {budget:.4%} is allowed; table "
            f"'{worst.name}' costs most alone ({worst.ne_loss:.4%}), so give it more bits "
            f"(--tables {worst.name}={_more_bits(worst.precision)}), or raise --budget."
        )

    def _result(
        self,
        program: ModelProgram,
        found: _Pass,
        tables: Sequence[PartCost],
        layers: Sequence[PartCost],
        left: Sequence[str],
    ) -> GateResult:
        # Both classes are there, or there were no normalized entropy.
        assert found.trained.auc is not None
        assert found.frozen.auc is not None
        record = GateRecord(
            split=self.inputs.split,
            samples=found.trained.samples,
            budget=self.inputs.budget,
            trained_ne=found.trained.ne,
            frozen_ne=found.frozen.ne,
            trained_auc=found.trained.auc,
            frozen_auc=found.frozen.auc,
        )
        report = {
            "gate": {**record.model_dump(), "ne_loss": record.ne_loss},
            "costs_samples": len(found.kept.labels),
            "tables": [cost._asdict() for cost in tables],
            "layers": [
                {**cost._asdict(), "used": "float32" if cost.name in left else cost.precision}
                for cost in layers
            ],
            "left_in_float32": [
                f"{name}: with it in {self.inputs.precision} the whole model was above the budget"
                for name in left
            ],
        }
        lengths = dict(zip(self.inputs.features, found.lengths.tolist(), strict=True))
        return GateResult(program, record, report, lengths, found.checks)


def _more_bits(precision: str) -> str:
    return {"int4": "int8", "int8": "float16"}.get(precision, "float32")
