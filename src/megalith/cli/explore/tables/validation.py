"""What `megalith explore validate` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_table
from megalith.core.units import format_duration

if TYPE_CHECKING:
    from megalith.explore.validation.report import ValidationReport, ValidationRow


def show_validation(report: ValidationReport) -> None:
    """Every row with its error, and the errors summed up by group."""

    def value(row: ValidationRow, amount: float) -> str:
        return format_duration(amount) if row.metric == "step_seconds" else f"{amount:.4g} TFLOP/s"

    usual = max(report.groups, key=lambda name: report.groups[name].rows if name != "all" else 0)
    print_table(
        "Every row (fitted: constants were fitted on it)",
        ["id", "measured", "predicted", "error", ""],
        [
            [
                row.id,
                value(row, row.measured),
                value(row, row.predicted),
                f"{row.error:+.1%}",
                ", ".join([row.group] * (row.group != usual) + ["fitted"] * row.fitted),
            ]
            for row in report.rows
        ],
    )
    kinds = dict.fromkeys((*(row.group for row in report.rows), *(row.source for row in report.rows), "all"))
    for title, groups in (("all rows", report.groups), ("rows that nothing was fitted on", report.held_out)):
        print_table(
            f"Absolute error, {title}",
            ["group", "rows", "mean", "median", "worst", "bias"],
            [
                [
                    name,
                    groups[name].rows,
                    f"{groups[name].mean:.1%}",
                    f"{groups[name].median:.1%}",
                    f"{groups[name].worst:.1%}",
                    f"{groups[name].bias:+.1%}",
                ]
                for name in kinds
                if name in groups
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
