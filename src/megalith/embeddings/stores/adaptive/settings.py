"""`AdaptivePolicy`: how much memory adaptive tables may take together, and what decides which chunks live."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.embeddings.stores.settings import Bytes
from megalith.ops.chunks.ranking_sums import RankingSettings


class AdaptivePolicy(Config):
    """One budget for all adaptive tables of a model, and the ranking by which their chunks share it.

    Chunks are ranked by the norms of their gradients, which fade by `gamma` a step. Every `interval` steps
    the lowest are pruned, and what was missed most grows again, until all bytes fit the budget of the step.
    """

    ratio: float | None = Field(default=None, ge=1)
    """Bytes of weights and state as dense tables, divided by all bytes that they may take. Give this or
    `budget`."""
    budget: Bytes | None = Field(default=None, ge=1 << 12)
    """All bytes that they may take: weights, state, utilities, index, sketch and free room."""
    chunk: int = Field(default=16, ge=1)
    """Columns of a chunk where a table's store does not say: the widest divisor of its dim up to this.
    A row has at most 64."""
    gamma: float | None = Field(default=None, gt=0, lt=1)
    """What is left of a utility after a step; None: half of it after as many steps as the run has, so that
    rare ids of a long run do not fade between two of their uses."""
    interval: int | None = Field(default=None, ge=1)
    """Steps from one ranking to the next; None: a 50th of the run's, but not below 25. There are more after
    the popular ids of a table changed."""
    warm_up: int = Field(default=50, ge=0)
    """Steps before the budget begins to fall."""
    begin_ratio: float = Field(default=1.0, ge=1)
    """The ratio before it falls; at 1 there is no bound, and every row that occurs has all its chunks."""
    end: float = Field(default=0.5, gt=0, le=1)
    """The part of a run's steps after which the budget is what was asked for; it falls by a cubic curve."""
    end_step: int | None = Field(default=None, ge=1)
    """The same as a number of steps, and instead of it; required from Python."""
    first_chunks: int = Field(default=1, ge=1)
    """Chunks that a new row begins with, while there is room for new rows."""
    rate: float = Field(default=0.3, ge=0, le=1)
    """Rows that are not whole learn faster: by (chunks / live chunks) to this. A row of few columns moves its
    output less in a step, and rare ids have few steps."""
    position: float = Field(default=1.5, ge=0)
    """Chunks of a row are worth less the further behind they lie: 1 / (1 + columns before / 4) to this."""
    floor: float = Field(default=0.5, gt=0)
    """Weights count as at least this part of their table's mean when a chunk is ranked."""
    hysteresis: float = Field(default=1.2, ge=1)
    """A chunk that does not live must be worth more than one that does by this factor."""
    least_change: float = Field(default=0.0, ge=0, le=1)
    """Nothing changes where less than this part of the live chunks would, unless the budget asks for it."""
    exempt_rows: int = Field(default=10, ge=0)
    """Tables of at most so many rows stay dense, where a recipe names no stores."""
    exempt_share: float = Field(default=0.01, ge=0, le=1)
    """So do the smallest tables that together take less than this part of the budget."""
    sketch: float = Field(default=1 / 16, gt=0, le=0.5)
    """The part of the budget that remembers what rows without a chunk would be worth."""

    @model_validator(mode="after")
    def _one_size(self) -> AdaptivePolicy:
        if (self.ratio is None) == (self.budget is None):
            raise ValueError("give adaptive tables a `ratio` or a `budget`, one of them")
        return self

    def bytes_of(self, dense_bytes: int) -> int:
        """The budget of tables that take so many bytes as dense ones."""
        if self.budget is not None:
            return self.budget
        assert self.ratio is not None
        return int(dense_bytes / self.ratio)

    def ranking(self) -> RankingSettings:
        """How chunks are scored."""
        return RankingSettings(floor=self.floor, power=self.position, hysteresis=self.hysteresis)

    def for_steps(self, total: int) -> AdaptivePolicy:
        """The same with a schedule in steps, for a run of so many; 0 for one that is not trained."""
        if self.end_step is not None:
            return self
        return self.model_copy(update={"end_step": max(1, round(self.end * total))})

    @property
    def run_steps(self) -> float:
        """Steps of the run, as `end_step` and `end` tell them."""
        if self.end_step is None:
            raise ConfigError(
                "The schedule of adaptive tables ends after a part of a run, whose length is not known here; "
                "give AdaptivePolicy an end_step."
            )
        return self.end_step / self.end

    @property
    def halvings(self) -> float:
        """How often a utility halves in a step."""
        return 1 / self.run_steps if self.gamma is None else -math.log2(self.gamma)

    @property
    def ranking_interval(self) -> int:
        """Steps from one ranking to the next."""
        return max(25, round(self.run_steps / 50)) if self.interval is None else self.interval


class BudgetSchedule:
    """The bytes that adaptive tables may take at a step: from the beginning's to the budget, then that."""

    def __init__(self, policy: AdaptivePolicy, dense_bytes: int) -> None:
        self._warm_up = policy.warm_up
        self.end = max(round(policy.run_steps * policy.end), policy.warm_up + 1)
        """The step from which on it is what was asked for."""
        self.dense_bytes = dense_bytes
        """Of weights and state, if every row were whole."""
        self.final = policy.bytes_of(dense_bytes)
        """At the end, and from then on."""
        self.is_limited = self.final < dense_bytes
        """Whether it is ever less than rows that are all whole would take."""
        self._begin = None if policy.begin_ratio == 1 else dense_bytes / policy.begin_ratio

    @property
    def peak(self) -> int:
        """The most bytes that a step allows."""
        return max(self.final, self.dense_bytes if self._begin is None else int(self._begin))

    def at(self, step: int) -> int | None:
        """Bytes that all may take after a step; None is as many as they want."""
        if not self.is_limited:
            return None
        passed = (step - self._warm_up) / (self.end - self._warm_up)
        if passed >= 1:
            return self.final
        if passed <= 0:
            return None if self._begin is None else max(self.final, int(self._begin))
        begin = self.dense_bytes if self._begin is None else self._begin
        return max(self.final, int(self.final + (begin - self.final) * (1 - passed) ** 3))
