"""One plan, judged: predicted, and refused when it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from megalith.core.errors import MegalithError
from megalith.explore.job import Job
from megalith.explore.prediction import Prediction
from megalith.explore.search.space.decisions import Choice
from megalith.explore.search.space.search_space import Space

Predict = Callable[[Job], Prediction]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A prediction, or the sentence that says why there is none; a plan that does not fit has both."""

    prediction: Prediction | None
    refusal: str = ""

    @property
    def seconds(self) -> float:
        return self.prediction.step_seconds if self.prediction and not self.refusal else inf


def judge(space: Space, predict: Predict, choice: Choice) -> Verdict:
    try:
        prediction = predict(space.plan(choice))
    except MegalithError as error:
        return Verdict(None, str(error))
    return Verdict(prediction, "" if prediction.fits else "does not fit in memory")
