"""The report of a run: headline numbers, charts and tables in one HTML file."""

from __future__ import annotations

import platform
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from megalith.core.files import write_atomic
from megalith.core.units import format_bytes, format_count, format_duration
from megalith.hardware.machine import this_machine
from megalith.report.charts.adaptive import adaptive_bytes_chart, live_dims_chart
from megalith.report.charts.dynamic_tables import id_chart, turnover_chart, unknown_chart
from megalith.report.charts.embedding_tables import size_chart, traffic_chart
from megalith.report.charts.quality import calibration_chart, loss_chart, metric_chart
from megalith.report.charts.speed import format_time, rate_chart, time_chart
from megalith.report.charts.tiers import disk_rows_chart, hit_chart, tier_bytes_chart
from megalith.report.collect import RunFacts, Values, collect
from megalith.report.html_tables import NONE, filled_columns, shorten, table_html, text_html
from megalith.report.load import LoadSections, anomalies_html
from megalith.report.shell import (
    code_html,
    figures_html,
    footer_html,
    html_page,
    package_version,
    section_html,
    tile_html,
)
from megalith.report.tables import TableFacts

_PACKAGES = ("megalith", "torch", "numpy", "pyarrow")


def write_report(run: Path, out: Path) -> Values:
    """Writes the report of a run, whole or not at all; returns its headline numbers.

    >>> write_report(Path("runs/criteo-dlrm"), Path("report.html"))["ne"]  # doctest: +SKIP
    0.8271
    """
    facts = collect(run)
    write_atomic(out, render(facts))
    return facts.headline()


def render(facts: RunFacts) -> str:
    """The complete HTML."""
    learning = [
        metric_chart(
            facts, "ne", "Normalized entropy", "NE", "Log loss over that of always predicting the click rate."
        ),
        loss_chart(facts),
        metric_chart(
            facts, "auc", "AUC", "AUC", "Chance that a click is ranked above a non-click; 0.5 is guessing."
        ),
        calibration_chart(facts),
    ]
    speed = [rate_chart(facts), time_chart(facts)]
    tiers = [hit_chart(facts), disk_rows_chart(facts), tier_bytes_chart(facts)]
    adaptive = [live_dims_chart(facts), adaptive_bytes_chart(facts)]
    dynamic = [id_chart(facts), turnover_chart(facts), unknown_chart(facts)]
    tables = [size_chart(facts), traffic_chart(facts)]
    load = LoadSections(facts)
    body = "\n".join(
        (
            _header(facts),
            _tiles(facts),
            section_html("Anomalies", anomalies_html(facts)),
            section_html("Evaluations", _evaluations(facts)),
            section_html("Learning", figures_html(learning)),
            section_html("Speed", figures_html(speed)),
            load.html(),
            section_html("Rows in memory and on disk", _tiers(facts) + figures_html(tiers)),
            section_html("Adaptive tables", figures_html(adaptive)),
            section_html("Ids without bound", figures_html(dynamic)),
            section_html("Embedding tables", figures_html(tables) + _table_list(facts)),
            section_html("Details", _details(facts)),
            footer_html(),
        )
    )
    title = " · ".join(dict.fromkeys((facts.recipe.name, _folder(facts))))
    return html_page(title, body, (*learning, *speed, *load.charts, *tiers, *adaptive, *dynamic, *tables))


def _header(facts: RunFacts) -> str:
    good = " good" if facts.status in ("finished", "stopped early") else ""
    model = facts.recipe.model
    facts_line = [
        f"{type(model).__name__.removesuffix('Config')} on <code>{escape(str(facts.recipe.data.path))}</code>"
    ]
    if facts.tables.tables:
        total = sum(table.weight_bytes for table in facts.tables.tables)
        facts_line.append(f"{len(facts.tables.tables)} tables of {format_bytes(total)}")
    if facts.summary.get("dense_parameters"):
        facts_line.append(f"{format_count(facts.summary['dense_parameters'])} dense weights")
    # By default a run's folder has the name of its recipe, which is then said once.
    name = "" if facts.recipe.name == _folder(facts) else f"{text_html(facts.recipe.name, 60)} · "
    kind = "" if not name else ' class="folder"'
    return (
        f'<header><p class="eyebrow">Megalith · training report</p>'
        f'<div class="title"><h1>{name}<span{kind} '
        f'title="{escape(str(facts.folder.absolute()))}">{escape(shorten(_folder(facts), 60))}</span></h1>'
        f'<span class="chip{good}">{escape(facts.status)}</span></div>'
        f'<p class="lead">{" · ".join(facts_line)}</p></header>'
    )


def _folder(facts: RunFacts) -> str:
    return facts.folder.absolute().resolve().name


def _tiles(facts: RunFacts) -> str:
    headline = facts.headline()
    where = f"{headline['split']} split" if "split" in headline else "last training samples"
    rate = headline["samples_per_second"]
    spent = facts.time_spent
    inside = ""
    if spent and spent.parts.get("step"):
        inside = (
            f"{format_count(spent.steps * facts.recipe.data.batch_size / spent.parts['step'])} within steps"
        )
    total = facts.summary.get("total_steps")
    steps = f"{facts.step:,} of {total:,} steps" if total else f"{facts.step:,} steps"
    best = headline.get("best_log_loss")
    tiles = [
        tile_html("AUC", _number(headline.get("auc")), "1 ranks every click first"),
        tile_html(
            "Log loss",
            _number(headline.get("log_loss")),
            f"best possible {best:.4f}" if best is not None else "nats a sample",
        ),
        tile_html("Calibration", _number(headline.get("calibration"), 3), "predicted over observed clicks"),
        tile_html("Samples a second", NONE if rate is None else format_count(rate), inside),
        tile_html("Samples seen", format_count(facts.samples), steps),
        tile_html("Time", format_time(facts.seconds), "evaluation and checkpoints included"),
    ]
    shown = _main_tile(headline, where, _best_words(facts)) + "".join(tiles)
    return f'<section class="tiles" aria-label="Headline numbers">{shown}</section>'


def _best_words(facts: RunFacts) -> str:
    """Which evaluation was the best, and how good it was."""
    step, entry = facts.best_step, facts.best_evaluation
    if step is None:
        return ""
    words = f"Best step {step:,}, the last" if step == facts.step else f"Best step {step:,} of {facts.step:,}"
    if entry is None or entry.get("ne") is None:
        return words
    return f"{words}: NE {entry['ne']:.4f} on {entry['split']}"


def _main_tile(headline: Values, where: str, best_words: str) -> str:
    ne, best = headline.get("ne"), headline.get("best_ne")
    gauge = ""
    note = "Below 1 is better than predicting the click rate"
    if ne is not None and best is not None and best < 1:
        # Of all that can be learnt from this data, the share that was.
        learnt = (1 - ne) / (1 - best)
        filled = min(1.0, max(0.0, learnt))
        gauge = (
            f'<div class="gauge" role="img" aria-label="{learnt:.0%} of what can be learnt">'
            f'<span class="reached" style="width:{100 * filled:.1f}%"></span></div>'
        )
        share = f"{learnt:.0%} of what can be learnt" if learnt > 0 else "worse than the click rate alone"
        note = f"Best possible {best:.4f}: {100 * headline['above_best']:.2f}% above it, {share}"
    return (
        f'<div class="card tile main"><div class="name">Normalized entropy (NE), {escape(where)}</div>'
        f'<div class="value">{_number(ne)}</div>{gauge}<div class="note">{note}</div>'
        f'<div class="note best">{escape(best_words)}</div></div>'
    )


def _evaluations(facts: RunFacts) -> str:
    if not facts.finals:
        return ""
    columns = ["Split", "Step", "Rows", "Click rate", "NE", "Best NE", "Above best", "Log loss", "AUC"]
    columns += ["Calibration", "Calibration error"]
    rows = [
        [
            final["split"],
            f"{final['step']:,}",
            f"{final['samples']:,}",
            _number(final.get("click_rate")),
            _number(final.get("ne")),
            _number(final.get("best_ne")),
            f"{100 * final['above_best']:.2f}%" if final.get("above_best") is not None else NONE,
            _number(final.get("log_loss")),
            _number(final.get("auc")),
            _number(final.get("calibration"), 3),
            _number(final.get("calibration_error")),
        ]
        for final in facts.finals
    ]
    return table_html(columns, rows)


def _tiers(facts: RunFacts) -> str:
    """What tiers did in the whole run, beside what was predicted where it was."""
    real, predicted = facts.tiers, facts.prediction or {}
    if real is None:
        return ""
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "Cache hits": ("hit_rate", lambda rate: f"{rate:.1%}"),
        "Rows read a sample": ("reads_per_sample", lambda rows: f"{rows:.2f}"),
        "Time of a step": ("step_seconds", format_duration),
        "On disk at the end": ("disk_bytes", format_bytes),
        "Rows in memory": ("memory_bytes", format_bytes),
        "Index and buffers": ("index_bytes", format_bytes),
    }
    columns, rows = ["", *shown], [["In this run"]]
    rows[0] += [NONE if real.get(key) is None else write(real[key]) for key, write in shown.values()]
    if predicted:
        columns.append("Bound by")
        row = [write(predicted[key]) if key in predicted else NONE for key, write in shown.values()]
        rows = [[*rows[0], NONE], ["Predicted", *row, predicted["bound_by"]]]
    return f'<div class="before-charts">{table_html(columns, rows)}</div>'


def _table_list(facts: RunFacts) -> str:
    note = f'<p class="note-line">{code_html(facts.tables.note)}</p>' if facts.tables.note else ""
    if not facts.tables.tables:
        return note
    columns = ["Table", "Rows", "Dim", "Type", "Bytes", "Ids seen", "Top 1", "Top 10", "Top 100"]
    columns += ["Ids seen once", "Missing", "Skew"]
    rows = [_table_cells(table) for table in facts.tables.tables]
    kept = filled_columns([[text for _, text in row] for row in rows])
    body = "".join(
        "<tr>"
        + "".join(f'<td data-value="{escape(str(row[at][0]))}">{text_html(row[at][1])}</td>' for at in kept)
        + "</tr>"
        for row in rows
    )
    head = "".join(f'<th scope="col"><button type="button">{columns[at]}</button></th>' for at in kept)
    return (
        f'{note}<details class="card listing"><summary>All {len(rows)} tables</summary>'
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _table_cells(table: TableFacts) -> list[tuple[Any, str]]:
    """Of each column the value to sort by, and the text."""
    cells: list[tuple[Any, str]] = [
        (table.name, table.name),
        (table.rows, f"{table.rows:,}"),
        (table.dim, str(table.dim)),
        (table.dtype, table.dtype),
        (table.weight_bytes, format_bytes(table.weight_bytes)),
    ]
    if len(table.traffic) != 1:
        # Ids that several features share are counted for each of them, not for the table.
        return [*cells, *[("", NONE)] * 7]
    [traffic] = table.traffic
    cells.append((traffic.distinct_ids, f"{traffic.distinct_ids:,}"))
    shares = [traffic.top_1_share, traffic.top_10_share, traffic.top_100_share]
    shares += [traffic.seen_once_share, traffic.missing_share]
    cells += [(share, f"{100 * share:.1f}%") for share in shares]
    cells.append(("", NONE) if traffic.skew is None else (traffic.skew, f"{traffic.skew:.2f}"))
    return cells


def _details(facts: RunFacts) -> str:
    recorded = facts.summary.get("machine")
    machine = recorded or this_machine(facts.folder).to_dict()
    shown: dict[str, str] = {
        "Processor": f"{machine['cpu']}, {machine['cores']} cores",
        "Memory": format_bytes(machine["memory_bytes"]) if machine.get("memory_bytes") else NONE,
        "Vector instructions": ", ".join(machine["simd"]) or NONE,
        "System": str(machine["system"]),
        "Python": platform.python_version(),
        **{name: package_version(name) for name in _PACKAGES},
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in shown.items())
    where = "that trained" if recorded else "that made this report"
    return (
        f'<details class="card"><summary>Recipe</summary>'
        f"<pre>{escape(facts.config_text)}</pre></details>"
        f'<details class="card"><summary>Machine {where}, and versions</summary>'
        f"<dl>{listed}</dl></details>"
    )


def _number(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
