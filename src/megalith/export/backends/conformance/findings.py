"""What a check found, and how outputs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from megalith.export.backends.base import Outputs
from megalith.export.program import EMBEDDED, ModelProgram

Result = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one part of one model."""

    check: str
    model: str
    part: str
    result: Result
    asked: str
    wanted: str
    got: str

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        where = f"{self.check} ({self.part} of {self.model})"
        return f"{where}: {self.result}. Asked: {self.asked}. Wanted: {self.wanted}. Got: {self.got}."


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check says of itself; the suite adds where it was run."""

    asked: str
    wanted: str
    got: str
    passed: bool | None
    """None where it does not apply."""


def skipped(why: str) -> Verdict:
    """Of a check that does not apply."""
    return Verdict("nothing", "nothing", why, None)


def compared(
    asked: str,
    wanted: Outputs,
    got: Outputs,
    tolerance: float | Mapping[str, float],
    program: ModelProgram,
) -> Verdict:
    """Outputs against those of the twins: bit for bit where the tolerance, which may be one for each output,
    is 0, else by the farthest."""
    limits = tolerance if isinstance(tolerance, Mapping) else dict.fromkeys(wanted, tolerance)
    widest = max((limits.get(name, 0.0) for name in wanted), default=0.0)
    how = "the twins' bits" if not widest else f"the twins' outputs within {widest:.3g}"
    if sorted(wanted) != sorted(got):
        return Verdict(asked, f"outputs {sorted(wanted)}", f"outputs {sorted(got)}", False)
    worst, problem = 0.0, ""
    for name, truth in wanted.items():
        found = got[name]
        if found.shape != truth.shape or found.dtype != truth.dtype:
            problem = problem or f"'{name}' of {_described(found)} where {_described(truth)} belongs"
            continue
        if not truth.numel():
            continue
        if not bool(found.isfinite().all()):
            problem = problem or f"'{name}' that is not finite"
            continue
        limit = limits.get(name, 0.0)
        apart = (found.double() - truth.double()).abs().max().item() / unit_of(name, truth, program)
        if not limit and not torch.equal(found, truth):
            problem = problem or f"'{name}' with other bits, {apart:.3g} apart"
        elif apart > limit:
            problem = problem or f"'{name}' {apart:.3g} apart, more than {limit:.3g},"
        worst = max(worst, apart)
    return Verdict(asked, how, problem or f"outputs at most {worst:.3g} apart", not problem)


def unit_of(name: str, truth: Tensor, program: ModelProgram) -> float:
    """What a difference is counted in: 1 for probabilities, the largest value for numbers and vectors."""
    kinds = {task.name: task.kind for task in program.outputs}
    if name != EMBEDDED and kinds.get(name) == "probability":
        return 1.0
    return max(1.0, float(truth.double().abs().max()))


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
