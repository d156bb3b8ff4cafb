"""Learning rates that fall when evaluations no longer get better."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from megalith.train.stopping import BestSoFar, EarlyStoppingConfig


class PlateauConfig(EarlyStoppingConfig):
    """Multiplies all rates by `factor` when `metric` has not improved for `patience` evaluations."""

    patience: int = Field(default=1, ge=1)
    """Evaluations without improvement before the rates fall."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """What rates are multiplied by, each time."""
    least: float = Field(default=1e-3, ge=0, le=1)
    """All such factors together are never below."""


class PlateauRate:
    """The factor that evaluations have led to so far; 1 where a recipe asks for none."""

    def __init__(self, config: PlateauConfig | None) -> None:
        self._config, self._best = config, BestSoFar(config)
        self.factor = 1.0

    def update(self, step: int, metrics: dict[str, Any]) -> None:
        """Takes an evaluation in."""
        if self._config is None:
            return
        self._best.update(step, metrics)
        if self._best.exhausted:
            self.factor = max(self._config.least, self.factor * self._config.factor)
            self._best.without_improvement = 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it; nothing where a recipe asks for none."""
        return {} if self._config is None else {"factor": self.factor, **self._best.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        if self._config is not None:
            self.factor = state["factor"]
            self._best.load_state_dict(state)
