"""How accurate predictions are: the suite behind `megalith explore validate`.

measurements.py          measured steps; llm_training.csv and measured_steps.jsonl lie beside it, and the hardware they ran on
job_columns.py           tables of steps: a column for each setting of a job
bubbles.py               published bubble rates of schedules; bubbles.csv lies beside it
replay.py                every step predicted and compared
report.py                the errors, by family and by stack
left_out.yaml            errors of every shipped step predicted without its model (written by `benchmarks/fit_stacks.py`)
"""

from __future__ import annotations

from megalith.explore.validation.replay import validate
from megalith.explore.validation.report import ValidationReport

__all__ = ["ValidationReport", "validate"]
