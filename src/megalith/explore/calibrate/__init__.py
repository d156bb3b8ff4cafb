"""Profiles of stacks fitted to measured steps: the work behind `megalith explore calibrate`.

fit.py         constants by regularised least squares
left_out.py    fits without one model each, and what they predict of it
profile.py     a profile for a user's own runs, with its report
"""

from __future__ import annotations

from megalith.explore.calibrate.profile import CalibrationReport, calibrate

__all__ = ["CalibrationReport", "calibrate"]
