"""When to stop: early, by the evaluation metric; or cleanly, when the system asks."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field

from megalith.comm.peer_lost import peer_errors
from megalith.comm.ranks import Ranks
from megalith.core.config import Config


class EarlyStoppingConfig(Config):
    """Stops when `metric` of the evaluation split has not improved for `patience` evaluations."""

    metric: Literal["ne", "log_loss", "auc"] = "ne"
    """What is watched: normalized entropy and log loss should fall, AUC should rise."""
    patience: int = Field(default=3, ge=1)
    """Evaluations without improvement before the run stops."""
    min_delta: float = Field(default=0.0, ge=0)
    """What counts as improvement: better by more than this."""


class BestSoFar:
    """The best evaluation yet, and how many have passed without a better one."""

    def __init__(self, config: EarlyStoppingConfig | None) -> None:
        self._config = config
        self.step: int | None = None
        self.value: float | None = None
        self.without_improvement = 0

    def update(self, step: int, metrics: dict[str, Any]) -> bool:
        """Takes an evaluation in; True if it is the best yet."""
        metric = self._config.metric if self._config else "ne"
        value = metrics[metric]
        if value is None:
            return False
        delta = self._config.min_delta if self._config else 0.0
        sign = -1.0 if metric == "auc" else 1.0
        if self.value is None or sign * value < sign * self.value - delta:
            self.step, self.value, self.without_improvement = step, value, 0
            return True
        self.without_improvement += 1
        return False

    @property
    def exhausted(self) -> bool:
        """Whether as many evaluations as `patience` allows have brought nothing better."""
        return self._config is not None and self.without_improvement >= self._config.patience

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"step": self.step, "value": self.value, "without_improvement": self.without_improvement}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        self.step, self.value = state["step"], state["value"]
        self.without_improvement = state["without_improvement"]


class StopSignal:
    """Turns SIGTERM and the first Ctrl-C into a request that the loop honours between two steps."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested is not None and number == signal.SIGINT:
            # The second Ctrl-C means now.
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name


def agree_on_signal(ranks: Ranks, requested: str | None) -> str | None:
    """The signal that any rank was sent, so that all stop at the same step."""
    if ranks.world_size == 1:
        return requested
    number = torch.tensor(signal.Signals[requested].value if requested else 0)
    with peer_errors():
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=ranks.group)
    return signal.Signals(int(number)).name if number else None
