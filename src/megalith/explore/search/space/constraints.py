"""What the user allows: options fixed to one value, axes kept inside members of a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from megalith.core.errors import ConfigError, nearest
from megalith.explore.job import Job, Network, Parallel, Training
from megalith.explore.search.space.layouts import AXES, DeviceLayout
from megalith.explore.search.space.trainers import TRAINERS, ranks_reach
from megalith.hardware.cluster import Cluster

Option = TypeVar("Option")

_NOT_FIXABLE = {"global_batch", "layers_per_stage"}
FIXABLE = tuple(
    name for part in (Parallel, Training, Network) for name in part.model_fields if name not in _NOT_FIXABLE
)


class OptionConstraints:
    """The constraints of a job on its options, checked once and asked often."""

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.fixed = dict(job.constraints.fixed)
        for name in self.fixed:
            if name not in FIXABLE:
                raise ConfigError(f"constraints.fixed: unknown option '{name}'; {nearest(name, FIXABLE)}")
        self._job = job
        self.trainer = TRAINERS[job.constraints.trainer] if job.constraints.trainer else None
        for name, value in self.fixed.items():
            runs = self.trainer.values.get(name, [value]) if self.trainer else [value]
            if value not in runs:
                raise ConfigError(
                    f"constraints.fixed: {name}={value} is not what constraints.trainer="
                    f"{job.constraints.trainer} runs; take one of {', '.join(map(str, runs))}."
                )
        self._inside = _innermost_forbidden(job, cluster)
        placement = self.fixed.get("placement")
        self._placement = tuple(part.strip() for part in str(placement).split(",")) if placement else None

    def allows_layout(self, layout: DeviceLayout) -> bool:
        """Whether its sizes, crossings and placement are what the user allows."""
        for axis in AXES:
            if not self.allows(axis, layout.size(axis)):
                return False
            if any(index >= self._inside.get(axis, len(layout.factors)) for index in layout.crosses(axis)):
                return False
        if self.trainer is not None and not ranks_reach(self._job, self.trainer, layout):
            return False
        return self._placement is None or self._placement == layout.placement

    def allows_sharding(self, layout: DeviceLayout, strategy: str) -> bool:
        """Whether replicas of this layout may share the training state so."""
        if self.trainer is not None and self.trainer.shards_always and strategy in ("none", "zero1"):
            alone = layout.tp * layout.cp * layout.pp == 1
            if layout.dp * layout.cp > 1 and not (strategy == "none" and alone):
                return False
        return self.allows("sharding", strategy)

    def keeps_inside(self, axis: str) -> bool:
        """Whether some level may not be crossed by this axis."""
        return axis in self._inside

    def allows(self, name: str, value: object) -> bool:
        """Whether an option may have this value."""
        if self.trainer is not None and value not in self.trainer.values.get(name, (value,)):
            return False
        return name not in self.fixed or self.fixed[name] == value

    def restrict(self, name: str, options: Sequence[Option]) -> list[Option]:
        """The options, or the one that the user fixed, be it listed or not."""
        if name not in self.fixed:
            return [option for option in options if self.allows(name, option)]
        value: Any = self.fixed[name]
        return [value]


def _innermost_forbidden(job: Job, cluster: Cluster) -> dict[str, int]:
    """Axis -> the innermost level that it may not cross."""
    names = [level.name for level in cluster.levels]
    inside: dict[str, int] = {}
    for crossing in job.constraints.forbidden_crossings:
        axis, _, level = crossing.partition("@")
        if axis not in (*AXES, "ep"):
            raise ConfigError(
                f"constraints.forbidden_crossings: '{crossing}' names no axis; {nearest(axis, (*AXES, 'ep'))}"
            )
        if level not in names:
            raise ConfigError(
                f"constraints.forbidden_crossings: '{crossing}' names no level of the cluster; "
                f"{nearest(level, names)}"
            )
        inside[axis] = min(inside.get(axis, len(names)), names.index(level))
    return inside
