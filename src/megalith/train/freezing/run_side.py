"""`RunSide`: a trained run where frozen models are compared, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from megalith.data.batch import Batch
from megalith.export.backends.base import Outputs
from megalith.export.backends.inputs import LookupColumns, ScoreRequest
from megalith.export.difference.requests import batch_of
from megalith.export.interpret import run_operation
from megalith.export.program import DENSE, EMBEDDED, ModelProgram, Operation
from megalith.export.trace import TracedModel, trace_model
from megalith.metrics.scores import scores_of
from megalith.train.pipeline import Pipeline
from megalith.train.scoring.scorer import Scorer


class RunSide:
    """The model of a run at one checkpoint, as training computes it."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.label = f"{scorer.folder} at step {scorer.step:,}"
        self.features = tuple(scorer.dataset.schema.feature_names)
        self._tables = {table.name: table for table in scorer.learner.tables}
        self.columns = _columns(scorer)

    @cached_property
    def _traced(self) -> TracedModel:
        learner = self._scorer.learner
        width = sum(table.output_dim for table in learner.tables)
        return trace_model(learner.dense, len(self._scorer.dataset.schema.numeric), width)

    @property
    def program(self) -> ModelProgram:
        """The dense part as it would be frozen, with all layers in float32."""
        return self._traced.program

    def table_form(self, table: str) -> str:
        """The type of a table's weights."""
        return self._tables[table].dtype

    def pooled(self, request: ScoreRequest) -> Tensor:
        """What the trained tables give."""
        learner = self._scorer.learner
        pipeline = Pipeline(_OneBatch(batch_of(request)), learner.stages(trains=False), depth=1)
        try:
            prepared = next(iter(pipeline))
            with torch.inference_mode():
                pending = learner.embeddings.start_lookup(prepared.resolved)
                return learner.embeddings.finish_lookup(pending).pooled.clone()
        finally:
            pipeline.abandon()

    def values(self, request: ScoreRequest) -> Mapping[str, Tensor]:
        """What every operation gives."""
        assert request.embedded is not None
        nothing = torch.empty(len(request.embedded), 0)
        known = {DENSE: nothing if request.dense is None else request.dense, EMBEDDED: request.embedded}
        for operation in self.program.operations:
            known[operation.output] = self.alone(operation, [known[name] for name in operation.inputs])
        return {name: value for name, value in known.items() if name not in (DENSE, EMBEDDED)}

    def alone(self, operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
        """What one operation gives of these inputs."""
        with torch.inference_mode():
            return run_operation(operation, self._traced.weights, list(inputs))

    def outputs(self, request: ScoreRequest) -> Outputs:
        """The scores of the trained model."""
        pooled = self.pooled(request)
        learner, batch = self._scorer.learner, batch_of(request)
        learner.dense.eval()
        with torch.inference_mode():
            scores = scores_of(learner.dense(batch.dense, pooled))
        return {self.program.outputs[0].name: torch.from_numpy(scores)}

    def output_limits(self) -> Mapping[str, float]:
        """Not known."""
        return {}


def _columns(scorer: Scorer) -> list[LookupColumns]:
    found, end = [], 0
    for table in scorer.learner.tables:
        for feature in table.features:
            found.append(LookupColumns(table.name, feature, False, end, end + table.dim))
            end += table.dim
    return found


class _OneBatch:
    """A batch where a pipeline wants a source of them."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def stream(self) -> Iterator[Batch]:
        """The batch."""
        yield self._batch

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing to end."""
