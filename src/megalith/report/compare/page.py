"""The page of several runs: results with the best of each column marked, curves, where recipes differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from megalith.core.files import write_atomic
from megalith.report.collect import Values
from megalith.report.compare.charts import curve_charts, run_colour
from megalith.report.compare.facts import RunComparison, cell, compare
from megalith.report.html_tables import NONE, shorten, table_html, text_html
from megalith.report.shell import figures_html, footer_html, html_page, section_html


def write_comparison(folders: Sequence[Path], out: Path) -> Values:
    """Writes the page of some runs, whole or not at all; returns the comparison."""
    comparison = compare(folders)
    write_atomic(out, render_comparison(comparison))
    return comparison.to_dict()


def render_comparison(comparison: RunComparison) -> str:
    """The complete HTML."""
    charts = curve_charts(comparison)
    recipes = list(dict.fromkeys(run.recipe.name for run in comparison.runs))
    title = f"{len(comparison.runs)} runs of {', '.join(recipes)}"
    names = "".join(
        f'<span class="run"><i style="background:{run_colour(number)}"></i>'
        f'<span title="{escape(str(run.folder.absolute()))}">{escape(shorten(name))}</span></span>'
        for number, (name, run) in enumerate(zip(comparison.names, comparison.runs, strict=True))
    )
    header = (
        '<header><p class="eyebrow">Megalith · comparison of runs</p>'
        f'<div class="title"><h1>{text_html(title, 90)}</h1></div><p class="lead">{names}</p></header>'
    )
    notes = "".join(f'<p class="note-line">{escape(note)}</p>' for note in comparison.notes())
    body = "\n".join(
        (
            header,
            section_html("Results", results_html(comparison) + notes),
            section_html("Learning", figures_html(charts)),
            section_html("What differs in their recipes", differences_html(comparison)),
            footer_html(),
        )
    )
    return html_page(title, body, charts)


def results_html(comparison: RunComparison) -> str:
    """A row a run; the best of each column is marked."""
    rows = [
        [name, *(cell(column, row) for column in comparison.columns)]
        for name, row in zip(comparison.names, comparison.rows, strict=True)
    ]
    marked = {
        (number, position)
        for position, column in enumerate(comparison.columns, start=1)
        for number in comparison.best(column)
    }
    return table_html(
        ["run", *(column.title for column in comparison.columns)], rows, marked=marked, narrow=True
    )


def differences_html(comparison: RunComparison) -> str:
    """A row a key, a column a run."""
    if not comparison.differences:
        return '<p class="note-line">Nothing: their recipes are the same.</p>'
    rows = [[key, *map(_text, values)] for key, values in comparison.differences.items()]
    return table_html(["key", *(shorten(name, 28) for name in comparison.names)], rows)


def _text(value: Any) -> str:
    if value is None:
        return NONE
    return value if isinstance(value, str) else json.dumps(value)
