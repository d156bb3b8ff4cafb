"""What `megalith explore calibrate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_table, say
from megalith.core.units import format_duration

if TYPE_CHECKING:
    from megalith.explore.calibrate import CalibrationReport


def show_calibration(report: CalibrationReport) -> None:
    """Each step's error before the fit, after it, and by a fit without its model; then the constants."""
    print_table(
        f"Steps of {report.stack}, over {report.base}",
        ["id", "model", "measured", "before", "fitted", "model left out"],
        [
            [
                step.id,
                step.model,
                format_duration(step.measured_seconds),
                f"{step.before:+.1%}",
                f"{step.fitted:+.1%}",
                "" if step.left_out is None else f"{step.left_out:+.1%}",
            ]
            for step in report.steps
        ],
    )
    summaries = (("before", report.before), ("fitted", report.fitted), ("model left out", report.left_out))
    print_table(
        "Absolute error",
        ["", "mean", "median", "worst", "bias"],
        [
            [name, f"{one.mean:.1%}", f"{one.median:.1%}", f"{one.worst:.1%}", f"{one.bias:+.1%}"]
            for name, one in summaries
            if one is not None
        ],
    )
    print_table(
        "Constants",
        ["", ""],
        [[name, f"{value:.4g}"] for name, value in report.constants.items()],
        header=False,
    )
    if report.left_out is None:
        say("All steps are of one model: what the profile says of others is not known. Add runs of another.")
