"""What `megalith explore scenarios` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from megalith.cli.output import print_table, say
from megalith.explore.scenarios.suite import PAPER_OVER_PRODUCTION, PAPER_OVER_STATE_OF_THE_ART, ScenarioRow


def show_scenarios(rows: Sequence[ScenarioRow], parts: dict[str, dict[str, float | None]]) -> None:
    """Speed-ups over the baselines, and of one dimension alone where that was asked for."""
    print_table(
        "How much faster the best plan is (gap: to the lower bound)",
        ["", "best s", "gap", "over production", "over CrossPipe"],
        [
            [
                row.name,
                f"{row.best.prediction.step_seconds:.4g}",
                f"{row.gap:.1%}",
                _gain(row.over_production),
                _gain(row.over_crosspipe),
            ]
            for row in rows
        ],
    )
    if parts:
        columns = list(next(iter(parts.values())))
        print_table(
            "Faster than production when one dimension alone is chosen, and all together",
            ["", *columns],
            [[name, *(_gain(gains[column]) for column in columns)] for name, gains in parts.items()],
        )
    for name, paper, speed_ups in (
        ("production", PAPER_OVER_PRODUCTION, [row.over_production for row in rows]),
        ("the state of the art", PAPER_OVER_STATE_OF_THE_ART, [row.over_crosspipe for row in rows]),
    ):
        gains = [gain for gain in speed_ups if gain is not None]
        if gains:
            best, middle = f"{max(gains):.2%}", f"{median(gains):.2%}"
            say(
                f"Over {name}: {best} at best, {middle} in the median of {len(gains)} "
                f"(ScaleAcross Explorer reports up to {paper:.2%})."
            )


def _gain(gain: float | None) -> str:
    return "none fits" if gain is None else f"{100 * gain:.1f}%"
