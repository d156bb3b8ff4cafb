"""What the operations and messages of one step cost, in seconds and nothing else.

The pipeline knows no models and no machines: whoever asks turns those into the numbers here. A link is any
hashable name. Everything sent over the same link queues in the order it became ready: `seconds` is how long
the link is taken, `latency_seconds` is how much later the far side has it (the next message does not wait for
that).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from megalith.core.errors import PlanError

Each = Literal["step", "turn", "op"]
"""How often a collective runs: once a step; each time the device turns to the chunk from another one; with
every operation of the chunk."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Activations or their gradients from one virtual stage to the next."""

    link: Hashable
    seconds: float
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Collective:
    """Gradients or parameters of one chunk among the replicas of it."""

    link: Hashable
    seconds: float
    latency_seconds: float = 0.0
    each: Each = "step"
    buckets: int = 1
    """Equal pieces. A gradient piece is ready when its share of the last weight gradient is computed; a piece
    of the parameters is needed only when its share of the operation begins."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one step; sequences are by virtual stage, boundary i lies between stages i and i + 1."""

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    forward_transfers: tuple[Transfer | None, ...] = ()
    """Stage i -> i + 1; None or an empty tuple: free."""
    backward_transfers: tuple[Transfer | None, ...] = ()
    """Stage i + 1 -> i."""
    gradient: Mapping[tuple[int, int], Collective] = field(default_factory=dict)
    """(device, chunk) -> what follows the weight gradients of that chunk."""
    parameters: Mapping[tuple[int, int], Collective] = field(default_factory=dict)
    """(device, chunk) -> what must come before the chunk's operations. `each="step"` means before its first
    forward; otherwise forward and backward operations both need it, as in ZeRO-3."""
    optimizer_seconds: tuple[float, ...] = ()
    """By device; empty: nothing."""
    overlap: bool = True
    """Gradients leave as soon as they are ready and parameters are fetched one operation ahead; otherwise the
    device computes nothing meanwhile."""
    forward_backward: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(stage going forward, stage going backward) -> seconds of the two side by side; their sum when left
    out."""
    activation: tuple[float, ...] = ()
    """What a micro-batch holds on each stage from its forward to its weight gradient; 1 when left out."""
    kept_for_weights: float = 1.0
    """Share of it still held between the input gradient and the weight gradient."""

    def __post_init__(self) -> None:
        stages = len(self.forward)
        for name, expected in (
            ("backward_input", (stages,)),
            ("backward_weight", (stages,)),
            ("forward_transfers", (0, stages - 1)),
            ("backward_transfers", (0, stages - 1)),
            ("activation", (0, stages)),
        ):
            length = len(getattr(self, name))
            if length not in expected:
                raise PlanError(
                    f"StepCosts.{name} has {length} entries for {stages} virtual stages; give {expected[-1]}."
                )

    @classmethod
    def uniform(
        cls,
        stages: int,
        forward: float,
        backward_input: float,
        backward_weight: float,
        *,
        transfer_seconds: float = 0.0,
        latency_seconds: float = 0.0,
    ) -> StepCosts:
        """Equal stages, each boundary with a link of its own in each direction."""
        free = transfer_seconds == 0.0 and latency_seconds == 0.0

        def transfers(direction: str) -> tuple[Transfer | None, ...]:
            if free:
                return ()
            return tuple(
                Transfer((direction, boundary), transfer_seconds, latency_seconds)
                for boundary in range(stages - 1)
            )

        return cls(
            forward=(forward,) * stages,
            backward_input=(backward_input,) * stages,
            backward_weight=(backward_weight,) * stages,
            forward_transfers=transfers("forward"),
            backward_transfers=transfers("backward"),
        )

    def with_free_transfers(self) -> StepCosts:
        """The same step if activations moved in no time: what is lost to transfers is the difference."""
        return replace(self, forward_transfers=(), backward_transfers=())

    def negative(self) -> str | None:
        """The name of a figure below zero, if there is one."""
        for name in ("forward", "backward_input", "backward_weight", "optimizer_seconds", "activation"):
            if any(value < 0 for value in getattr(self, name)):
                return name
        messages: list[tuple[str, Transfer | Collective | None]] = []
        messages += [("forward_transfers", transfer) for transfer in self.forward_transfers]
        messages += [("backward_transfers", transfer) for transfer in self.backward_transfers]
        messages += [("gradient", collective) for collective in self.gradient.values()]
        messages += [("parameters", collective) for collective in self.parameters.values()]
        for name, message in messages:
            if message is not None and (message.seconds < 0 or message.latency_seconds < 0):
                return name
        return None
