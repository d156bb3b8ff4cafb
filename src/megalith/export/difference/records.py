"""What the search for a difference gives: one record a table, layer and output."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FarthestValue:
    """Where two values are farthest apart."""

    sample: int
    column: int
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class PlaceDifference:
    """How far apart two sides are at a table, a layer or an output."""

    kind: Literal["table", "layer", "output"]
    name: str
    form: str
    """What it is on both sides, such as `int8` of a table, or `linear float32 | int8`."""
    own: float | None
    """Largest difference where both have the first side's inputs, as a share of its largest value: what this
    place adds. Of tables that is all there is; outputs add nothing."""
    arriving: float | None
    """The same where each side has inputs of its own: what all places up to here come to."""
    expected: float | None
    """What the precisions of this place explain; None is not judged."""
    equal: bool
    """Whether all bits are equal, on the first side's inputs."""
    farthest: FarthestValue | None = None
    ids: tuple[int, ...] = ()
    """Of a table, some ids of the bag that is farthest apart."""
    problem: str = ""
    """Why it cannot be compared."""

    @property
    def differs(self) -> bool:
        """Whether it is farther apart than is explained."""
        if self.problem:
            return True
        judged = self.own if self.own is not None else self.arriving
        return self.expected is not None and judged is not None and not judged <= self.expected

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**asdict(self), "differs": self.differs}


@dataclass(frozen=True, slots=True)
class DifferenceReport:
    """All places in the order in which a request passes them."""

    first: str
    second: str
    samples: int
    places: tuple[PlaceDifference, ...]

    @property
    def first_unequal(self) -> PlaceDifference | None:
        """The first place that has other bits."""
        return next((place for place in self.places if not place.equal), None)

    @property
    def first_different(self) -> PlaceDifference | None:
        """The first place that is farther apart than is explained."""
        return next((place for place in self.places if place.differs), None)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        unequal, different = self.first_unequal, self.first_different
        return {
            "first": self.first,
            "second": self.second,
            "samples": self.samples,
            "first_unequal": None if unequal is None else unequal.name,
            "first_different": None if different is None else different.to_dict(),
            "places": [place.to_dict() for place in self.places],
        }
