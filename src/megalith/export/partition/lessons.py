"""What each lesson of the first platform is worth: predicted again with that one left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from megalith.core.errors import PlanError
from megalith.export.partition.plan import partition
from megalith.export.partition.prediction import Setting

LESSONS = {
    "narrow_ids": "32-bit ids",
    "half_vectors": "FP16 vectors and dense inputs",
    "used_bytes_only": "only used bytes copied",
    "user_once": "user features once a request",
    "one_transfer": "one transfer a card",
    "card_to_card": "vectors from card to card",
    "overlap": "sparse part beside the dense part before it",
}


@dataclass(frozen=True, slots=True)
class Lesson:
    """One of them left out, against all of them taken."""

    name: str
    latency: float | None
    """How many times longer a request takes without it; None where the model then does not fit."""
    rate: float | None
    """How many times more requests a second there are with it."""


def lessons(setting: Setting, cards: int | None = None) -> list[Lesson]:
    """Each lesson left out by itself; the number of cards a replica stays that of all taken."""
    base = partition(setting, cards=cards)
    found = []
    for key, words in LESSONS.items():
        moving = replace(setting.moving, **{key: False})
        try:
            without = partition(replace(setting, moving=moving), cards=len(base.cards)).prediction
        except PlanError:
            found.append(Lesson(words, None, None))
            continue
        found.append(
            Lesson(
                words,
                without.latency_seconds / base.prediction.latency_seconds,
                base.prediction.requests_per_second / without.requests_per_second,
            )
        )
    return found
