"""What `megalith explore validate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_table
from megalith.core.units import format_duration

if TYPE_CHECKING:
    from megalith.explore.validation.report import ErrorSummary, ValidationReport, ValidationRow


def show_validation(report: ValidationReport) -> None:
    """Every row with its error, the errors summed up by family and stack, memory, and bubble rates."""

    def value(row: ValidationRow, amount: float) -> str:
        return format_duration(amount) if row.metric == "step_seconds" else f"{amount:.4g} TFLOP/s"

    print_table(
        "Every step (left out: predicted by a fit without its model)",
        ["id", "stack", "measured", "predicted", "error", "left out", "80% interval"],
        [
            [
                row.id,
                row.stack,
                value(row, row.measured),
                value(row, row.predicted),
                f"{row.error:+.1%}",
                "" if row.left_out is None else f"{row.left_out:+.1%}",
                "inside" if row.inside else "outside",
            ]
            for row in report.rows
        ],
    )
    left_out, coverage = report.left_out, report.coverage
    print_table(
        "Absolute error by family and stack",
        ["", "rows", "mean", "median", "worst", "bias", "mean left out", "inside 80%"],
        [
            [name, *_summary(group), _mean(left_out.get(name)), f"{coverage[name]:.0%}"]
            for name, group in sorted(report.groups.items())
        ],
    )
    if report.memory:
        print_table(
            "Memory, GiB a device",
            ["id", "logged", "predicted", "error", ""],
            [
                [
                    check.id,
                    "out of memory"
                    if check.measured_gibibytes is None
                    else f"{check.measured_gibibytes:.0f}",
                    f"{check.predicted_gibibytes:.1f}",
                    "" if check.error is None else f"{check.error:+.1%}",
                    "fits" if check.fits else "does not fit",
                ]
                for check in report.memory
            ],
        )
    if report.bubbles:
        print_table(
            "Bubble rates of schedules",
            ["model", "schedule", "measured", "predicted", "off by"],
            [
                [
                    bubble.model,
                    bubble.schedule,
                    f"{bubble.measured:.4f}",
                    f"{bubble.predicted:.4f}",
                    f"{bubble.error:+.4f}",
                ]
                for bubble in report.bubbles
            ],
        )


def _summary(group: ErrorSummary) -> list[object]:
    return [
        group.rows,
        f"{group.mean:.1%}",
        f"{group.median:.1%}",
        f"{group.worst:.1%}",
        f"{group.bias:+.1%}",
    ]


def _mean(group: ErrorSummary | None) -> str:
    return "" if group is None else f"{group.mean:.1%}"
