"""What a run says of its machine: what was wrong, where a step's time went, what each rank carried."""

from __future__ import annotations

from dataclasses import replace

from megalith.core.units import format_bytes, format_count
from megalith.report.charts.ranks import (
    lookup_chart,
    rank_memory_chart,
    rank_time_chart,
    rank_totals,
    resident_chart,
    wait_matrix_chart,
)
from megalith.report.charts.speed import format_time
from megalith.report.charts.step_time import step_chart, wait_chart
from megalith.report.collect import RunFacts
from megalith.report.html_tables import NONE, table_html
from megalith.report.shell import Chart, figures_html, section_html


class LoadSections:
    """The sections, and the charts that are in them."""

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self._step = _level(step_chart(facts), wait_chart(facts))
        side_by_side = _level(rank_time_chart(facts), wait_matrix_chart(facts))
        self._ranks = [*side_by_side, lookup_chart(facts)]
        self._memory = _level(rank_memory_chart(facts), resident_chart(facts))

    @property
    def charts(self) -> list[Chart | None]:
        """All of them."""
        return [*self._step, *self._ranks, *self._memory]

    def html(self) -> str:
        """The sections one after the other; those without content are left out."""
        return "\n".join(
            (
                section_html("A step", figures_html(self._step)),
                section_html("Ranks", _rank_table(self._facts) + figures_html(self._ranks)),
                section_html("Memory", figures_html(self._memory)),
            )
        )


def _level(*charts: Chart | None) -> list[Chart | None]:
    """Charts that stand side by side, of one height."""
    height = max((chart.height for chart in charts if chart is not None), default=0)
    return [None if chart is None else replace(chart, height=height) for chart in charts]


def anomalies_html(facts: RunFacts) -> str:
    """What the run told of itself while it trained."""
    if not facts.anomalies:
        return ""
    rows = [[f"{found['step']:,}", found["anomaly"], found["message"]] for found in facts.anomalies]
    return table_html(["Step", "Anomaly", "What to do"], rows, words=("What to do",))


def _rank_table(facts: RunFacts) -> str:
    loads, _ = rank_totals(facts.training)
    if len(loads) < 2:
        return ""
    columns = ["Rank", "Waited for data", "Waited for ranks", "Ids looked up", "Sent", "Tables", "On disk"]
    rows = []
    for number, load in enumerate(loads):
        tables = load["table_bytes"]
        disk = tables.get("disk", 0)
        resident = load["resident_bytes"]
        rows.append(
            [
                str(number),
                format_time(load["data_wait_seconds"]),
                format_time(load["rank_wait_seconds"]),
                format_count(load["lookups"]),
                format_bytes(load["sent_bytes"]),
                format_bytes(sum(tables.values()) - disk),
                format_bytes(disk) if disk else NONE,
                NONE if resident is None else format_bytes(resident),
            ]
        )
    table = table_html([*columns, "Process"], rows)
    if len(rows) <= _OPEN_ROWS:
        return f'<div class="before-charts">{table}</div>'
    return f'<details class="card before-charts"><summary>All {len(rows)} ranks</summary>{table}</details>'


_OPEN_ROWS = 16
"""A longer table is closed at first."""
