"""The page of a whole journey: what was run and what came of it, then its runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megalith.core.files import write_atomic
from megalith.core.units import format_bytes
from megalith.report.charts.adaptive import adaptive_bytes_chart, live_dims_chart
from megalith.report.charts.speed import format_time
from megalith.report.charts.step_time import step_chart
from megalith.report.charts.tiers import hit_chart, tier_bytes_chart
from megalith.report.compare.charts import curve_charts
from megalith.report.compare.facts import compare
from megalith.report.compare.page import differences_html, results_html
from megalith.report.html_tables import table_html
from megalith.report.shell import figures_html, footer_html, html_page, section_html, tile_html


@dataclass(frozen=True, slots=True)
class JourneyStep:
    """A command of the journey."""

    command: str
    seconds: float
    found: str
    """What came of it, in a sentence."""


def write_journey(
    out: Path,
    steps: Sequence[JourneyStep],
    runs: Sequence[Path],
    tiles: Sequence[tuple[str, str, str]],
) -> None:
    """Writes the page, whole or not at all: `tiles` are name, value and note; `runs` the first one, that with
    rows on disk, the small one."""
    comparison = compare(runs)
    whole, disk, small = comparison.runs
    curves = curve_charts(comparison)
    parts = [step_chart(whole), hit_chart(disk), tier_bytes_chart(disk)]
    parts += [live_dims_chart(small), adaptive_bytes_chart(small)]
    rows = [[f"megalith {step.command}", format_time(step.seconds), step.found] for step in steps]
    total = format_time(sum(step.seconds for step in steps))
    size = format_bytes(sum(table.weight_bytes for table in whole.tables.tables))
    body = "\n".join(
        (
            '<header><p class="eyebrow">Megalith · the whole journey</p>'
            '<div class="title"><h1>From clicks to a service</h1></div>'
            f'<p class="lead">{len(whole.tables.tables)} tables of {size}; '
            f"{len(steps)} commands in {total}</p>"
            "</header>",
            f'<section class="tiles even">{"".join(tile_html(*tile) for tile in tiles)}</section>',
            section_html(
                "What was run",
                table_html(
                    ["Command", "Time", "What came of it"], rows, words=("Command", "What came of it")
                ),
            ),
            section_html("Runs", results_html(comparison)),
            section_html("Learning", figures_html(curves)),
            section_html("Time, rows on disk, smaller tables", figures_html(parts)),
            section_html("What differs in their recipes", differences_html(comparison)),
            footer_html(),
        )
    )
    style = ".tiles.even { grid-template-columns: repeat(4, minmax(0, 1fr)); }"
    write_atomic(out, html_page("The whole journey", body, (*curves, *parts), style))
