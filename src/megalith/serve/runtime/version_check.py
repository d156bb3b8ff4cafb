"""Whether a version may serve: its own samples give the outputs they came with, and requests of late score
about as high as on the version before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from megalith.core.errors import QualityError
from megalith.export.backends.base import ModelSource
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.choice import parse_choice
from megalith.export.backends.conformance.findings import compared
from megalith.export.backends.registry import find_backend
from megalith.serve.failures import RequestError
from megalith.serve.runtime.recorded import KeptRequest, Replay, recorded_tensors
from megalith.serve.runtime.scheduling.work import ServedVersion

_HALF_VECTORS = 5e-3
"""What vectors of 16 bits between cards may change an output by."""


@dataclass(frozen=True, slots=True)
class VersionFindings:
    """What was compared before a version took over."""

    samples: int = 0
    """Of the folder's own checks."""
    requests: int = 0
    """That were recorded and replayed."""
    refused: int = 0
    """Of these, those that the version before answered and this one does not."""
    calibration: dict[str, float] | None = None
    """Mean score over that of the version before, by task."""

    def to_dict(self) -> dict[str, Any]:
        """As a report has it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class VersionCheck:
    """Replays requests on a version that is loaded and not yet found by any request."""

    def __init__(self, replay: Replay, bound: float, cards: int) -> None:
        self._replay, self._bound, self._cards = replay, bound, cards

    def __call__(
        self,
        model: ModelSource,
        new: ServedVersion,
        old: ServedVersion | None,
        recorded: Sequence[KeptRequest],
        *,
        alone: bool = False,
    ) -> VersionFindings:
        """What was found; QualityError where the version is worse. `alone`: nothing is served meanwhile."""
        samples = self._own_samples(model, new, alone)
        if old is None or not recorded:
            return VersionFindings(samples=samples)
        sums: dict[str, list[float]] = {}
        refused = 0
        for request in recorded:
            try:
                before = self._replay(old, request)
            except RequestError:
                # Traffic has wrong requests too.
                continue
            try:
                after = self._replay(new, request)
            except RequestError:
                refused += 1
                continue
            for task in before.outputs.keys() & after.outputs.keys():
                both = sums.setdefault(task, [0.0, 0.0])
                both[0] += float(np.sum(before.outputs[task], dtype=np.float64))
                both[1] += float(np.sum(after.outputs[task], dtype=np.float64))
        ratios = {task: after / before for task, (before, after) in sums.items() if before}
        if 2 * refused > len(recorded):
            raise QualityError(
                f"Version {new.version} of '{new.model}' refuses {refused} of {len(recorded)} recorded "
                "requests that the version before answers; it does not take over."
            )
        for task, ratio in ratios.items():
            if not abs(ratio - 1) <= self._bound:
                raise QualityError(
                    f"Version {new.version} of '{new.model}' scores recorded requests {ratio:.3g} times as "
                    f"high in '{task}' as the version before, beyond the bound of {self._bound:g}; it does "
                    "not take over."
                )
        return VersionFindings(samples, len(recorded), refused, ratios)

    def _own_samples(self, model: ModelSource, new: ServedVersion, alone: bool) -> int:
        found = recorded_checks(model)
        if found is None:
            return 0
        request, wanted = found
        if new.limits is None:
            choice = parse_choice(new.spec.backend)
            last = choice.dense or choice.lookups
            new.limits = dict(find_backend(last.name).tolerance(model, last.options))
        limits = new.limits
        if new.spec.pooled == "float16" and new.spec.partitions:
            limits = {task: limit + _HALF_VECTORS for task, limit in limits.items()}
        recorded = recorded_tensors(request)
        # On every card: this is what warms them.
        for _ in range(max(1, self._cards)):
            answer = self._replay(new, recorded, alone=alone)
            got = {task: torch.from_numpy(np.ascontiguousarray(one)) for task, one in answer.outputs.items()}
            verdict = compared("", wanted, got, limits, model.manifest.program)
            if not verdict.passed:
                raise QualityError(
                    f"Version {new.version} of '{new.model}' gives {verdict.got} for its own samples, not "
                    "what they came with; it does not take over."
                )
        return len(next(iter(wanted.values())))
