"""How good predictions are: log loss, NE, AUC, calibration; of arrays, of the last samples, of a whole run.

Everything is computed in float64, the same from run to run. What the samples leave undefined (the AUC of one
class, the NE of labels without entropy) is None.
"""

from megalith.metrics.accumulate import RunMetrics, WindowMetrics, evaluate
from megalith.metrics.calibration import (
    CalibrationCurve,
    calibration,
    calibration_curve,
    expected_calibration_error,
)
from megalith.metrics.loss import log_loss, normalized_entropy
from megalith.metrics.ranking import AucHistogram, auc

__all__ = [
    "AucHistogram",
    "CalibrationCurve",
    "RunMetrics",
    "WindowMetrics",
    "auc",
    "calibration",
    "calibration_curve",
    "evaluate",
    "expected_calibration_error",
    "log_loss",
    "normalized_entropy",
]
