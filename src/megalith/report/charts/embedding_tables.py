"""Charts of the embedding tables of a run: how large they are, and how skewed their lookups."""

from __future__ import annotations

import math
from collections.abc import Sequence

from megalith.core.units import format_bytes, format_count
from megalith.report.charts.axes import byte_tick, label_axis
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart

MAX_TABLES = 40
LABELLED_SHARE = 0.08
"""Smaller shares have their number on hover only."""


def size_chart(facts: RunFacts) -> Chart | None:
    """Bytes of each table, on a logarithmic axis: sizes span many powers of ten."""
    tables = facts.tables.tables[:MAX_TABLES]
    if not tables:
        return None
    tables = tables[::-1]
    smallest = min(table.weight_bytes for table in tables)
    largest = max(table.weight_bytes for table in tables)
    low, high = math.floor(math.log10(smallest)), math.log10(largest)
    ticks = [1024.0**power for power in range(5) if 10**low <= 1024**power <= largest * 1.2]
    if len(ticks) < 2:
        ticks = [float(smallest), float(largest)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [table.name for table in tables],
            "x": [table.weight_bytes for table in tables],
            "marker": {"color": "--train"},
            "text": [format_bytes(table.weight_bytes) for table in tables],
            "textposition": "outside",
            "cliponaxis": False,
            "customdata": [
                [table.name, f"{format_count(table.rows)} rows of {table.dim}"] for table in tables
            ],
            "hovertemplate": "%{customdata[0]}: %{text}<br>%{customdata[1]}<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = {
        "hovermode": "closest",
        "xaxis": {
            "type": "log",
            "title": {"text": "bytes (logarithmic)"},
            "range": [low, low + (high - low) * 1.22 + 0.2],
            "tickvals": ticks,
            "ticktext": [byte_tick(tick) for tick in ticks],
        },
        "yaxis": label_axis([table.name for table in tables]),
        "bargap": 0.3,
    }
    total = format_bytes(sum(table.weight_bytes for table in facts.tables.tables))
    count = len(facts.tables.tables)
    shown = f"; the {MAX_TABLES} largest are shown" if count > MAX_TABLES else ""
    caption = f"{count} tables of {total} in all, without optimizer state{shown}."
    return Chart("sizes", "Table sizes", caption, {"data": data, "layout": layout}, _rows_height(tables))


def traffic_chart(facts: RunFacts) -> Chart | None:
    """Which share of each table's lookups goes to its most frequent ids."""
    shown = [
        (table.name if len(table.features) == 1 else f"{table.name}: {feature.name}", feature)
        for table in facts.tables.tables[:MAX_TABLES]
        for feature in table.traffic
    ][::-1]
    if not shown:
        return None
    names, traffic = [name for name, _ in shown], [feature for _, feature in shown]
    series = [
        (
            "missing, unknown",
            "--rank-0",
            [feature.missing_share + feature.unknown_share for feature in traffic],
        ),
        ("top 1", "--rank-1", [feature.top_1_share for feature in traffic]),
        ("2 to 10", "--rank-2", [feature.top_10_share - feature.top_1_share for feature in traffic]),
        ("11 to 100", "--rank-3", [feature.top_100_share - feature.top_10_share for feature in traffic]),
    ]
    rest = [max(0.0, 1 - sum(shares)) for shares in zip(*(values for _, _, values in series), strict=True)]
    series.append(("all others", "--rank-4", rest))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [round(100 * value, 3) for value in values],
            "marker": {"color": colour},
            "customdata": names,
            "hovertemplate": f"%{{customdata}}, {name}: %{{x:.1f}}%<extra></extra>",
            "text": [f"{value:.0%}" if value >= LABELLED_SHARE else "" for value in values],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"size": 10},
        }
        for name, colour, values in series
    ]
    layout = {
        "barmode": "stack",
        "hovermode": "closest",
        "xaxis": {"title": {"text": "share of lookups (%)"}, "range": [0, 100], "dtick": 25},
        "yaxis": label_axis(names),
        "bargap": 0.3,
        "legend": {"traceorder": "normal"},
    }
    caption = (
        "Ids ranked by how often they occur in the training split; missing values and those outside the "
        "vocabulary are gray. Long dark bars cache well; where `all others` is long, rows are touched rarely."
    )
    return Chart(
        "traffic", "Traffic on tables", caption, {"data": data, "layout": layout}, _rows_height(names)
    )


def _rows_height(rows: Sequence[object]) -> int:
    return 110 + max(3, len(rows)) * 21
