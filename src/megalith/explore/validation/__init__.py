"""How accurate predictions are: the suite behind `megalith explore validate`.

measurements.py   measured steps; llm_training.csv, measured_steps.jsonl and their hardware lie beside it
job_columns.py    tables of steps: a column for each setting of a job
bubbles.py        published bubble rates of schedules; bubbles.csv lies beside it
replay.py         every step predicted and compared
report.py         the errors, by family and by stack
left_out.json     errors of every shipped step when its model is not fitted on (benchmarks/fit_stacks.py)
"""

from __future__ import annotations

from megalith.explore.validation.replay import validate
from megalith.explore.validation.report import ValidationReport

__all__ = ["ValidationReport", "validate"]
