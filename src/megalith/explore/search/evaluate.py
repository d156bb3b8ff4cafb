"""One plan evaluated: predicted, and refused when it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from megalith.core.errors import MegalithError
from megalith.explore.job import Job
from megalith.explore.prediction import Prediction
from megalith.explore.search.space.decisions import PlanCandidate
from megalith.explore.search.space.search_space import SearchSpace

Predict = Callable[[Job], Prediction]


@dataclass(frozen=True, slots=True)
class PlanEvaluation:
    """A prediction, or the sentence that says why there is none; a plan that does not fit has both."""

    prediction: Prediction | None
    refusal: str = ""

    @property
    def seconds(self) -> float:
        """The predicted step; infinite if the plan cannot run."""
        return self.prediction.step_seconds if self.prediction and not self.refusal else inf


def evaluate(space: SearchSpace, predict: Predict, candidate: PlanCandidate) -> PlanEvaluation:
    """Predicts one plan of a space; what cannot run is refused, not raised."""
    try:
        prediction = predict(space.to_job(candidate))
    except MegalithError as error:
        return PlanEvaluation(None, str(error))
    return PlanEvaluation(prediction, "" if prediction.fits else "does not fit in memory")
