"""How accurate predictions are: the suite behind `megalith explore validate`.

measurements.py   published steps as rows, and as jobs; llm_training.csv lies beside it
bubbles.py        published bubble rates of schedules; bubbles.csv lies beside it
replay.py         every row predicted and compared
report.py         the errors
"""

from __future__ import annotations

from megalith.explore.validation.replay import validate
from megalith.explore.validation.report import ValidationReport

__all__ = ["ValidationReport", "validate"]
