"""An exported model as one HTML page: what the gate measured, and what each table and layer costs."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError
from megalith.core.files import write_atomic
from megalith.core.units import format_bytes
from megalith.export.folder import FrozenModel
from megalith.report.charts.axes import byte_axis
from megalith.report.html_tables import table_html
from megalith.report.shell import (
    Chart,
    figures_html,
    footer_html,
    html_page,
    section_html,
    tile_html,
)

MOST_BARS = 40


def write_model_report(folder: Path, out: Path) -> dict[str, Any]:
    """Draws a model's folder, whole or not at all; returns its headline."""
    model = FrozenModel(folder)
    if out.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"--out {out} is inside the model, whose files are listed; name a file elsewhere.")
    write_atomic(out, render_model(model))
    gate = model.manifest.gate
    return {"name": model.manifest.name, "ne_loss": None if gate is None else gate.ne_loss}


def render_model(model: FrozenModel) -> str:
    """The complete HTML."""
    manifest, report = model.manifest, model.report()
    tables, layers = report.get("tables", []), report.get("layers", [])
    charts = [_bytes_chart(tables), _cost_chart(tables)] if tables else []
    header = (
        '<header><p class="eyebrow">Megalith \u00b7 frozen model</p>'
        f'<div class="title"><h1>{escape(manifest.name)}</h1></div>'
        f'<p class="lead">{len(manifest.tables):,} tables, {len(manifest.features):,} features, step '
        f"{manifest.step:,}</p></header>"
    )
    body = "\n".join(
        (
            header,
            _tiles(model),
            section_html("Tables", figures_html(charts) + _costs(tables)),
            section_html("Layers", _costs(layers)),
            section_html("Left in float32", _left(report.get("left_in_float32", []))),
            footer_html(),
        )
    )
    return html_page(manifest.name, body, charts)


def _tiles(model: FrozenModel) -> str:
    manifest = model.manifest
    tables = sum(table.bytes for table in manifest.tables)
    whole = sum(4 * table.rows * table.dim for table in manifest.tables)
    tiles = [
        tile_html("Tables", format_bytes(tables), f"{tables / whole:.1%} of float32" if whole else "no rows"),
        tile_html("All files", format_bytes(model.bytes()), f"{len(manifest.files) + 1} of them"),
    ]
    gate = manifest.gate
    if gate is None:
        tiles.append(tile_html("Gate", "none", "frozen without a check"))
    else:
        note = f"{gate.trained_ne:.6f} to {gate.frozen_ne:.6f}; {gate.budget:.4%} was allowed"
        tiles.append(tile_html("NE", f"{gate.ne_loss:+.4%}", note))
        rows = f"{gate.samples:,} samples of split {escape(gate.split)}"
        change = gate.frozen_auc - gate.trained_auc
        tiles.append(tile_html("AUC", f"{gate.frozen_auc:.6f}", f"{change:+.6f} on {rows}"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _costs(parts: list[dict[str, Any]]) -> str:
    if not parts:
        return ""
    rows = [
        (
            str(part["name"]),
            str(part.get("used", part["precision"])),
            format_bytes(part["bytes"]),
            f"{part['bytes'] / part['float32_bytes']:.1%}" if part["float32_bytes"] else "",
            f"{part['ne_loss']:+.4%}",
        )
        for part in parts
    ]
    return table_html(("name", "stored as", "bytes", "of float32", "NE, it alone"), rows)


def _left(lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _bytes_chart(parts: list[dict[str, Any]]) -> Chart:
    largest = sorted(parts, key=lambda part: -part["float32_bytes"])[:MOST_BARS]
    axis = byte_axis(max(part["float32_bytes"] for part in largest))
    names = [part["name"] for part in largest]
    figure = {
        "data": [
            {"type": "bar", "name": name, "x": names, "y": [part[key] for part in largest]}
            for name, key in (("float32", "float32_bytes"), ("frozen", "bytes"))
        ],
        "layout": {"barmode": "group", "yaxis": axis, "showlegend": True},
    }
    return Chart("model-bytes", "Bytes of tables", "Each table in float32 and as it is stored.", figure)


def _cost_chart(parts: list[dict[str, Any]]) -> Chart:
    worst = sorted(parts, key=lambda part: -abs(part["ne_loss"]))[:MOST_BARS]
    bar = {
        "type": "bar",
        "x": [part["name"] for part in worst],
        "y": [100 * part["ne_loss"] for part in worst],
        "name": "NE",
    }
    layout = {"yaxis": {"title": {"text": "NE, % above the trained model"}}}
    caption = "The trained model with one table alone reduced; below zero it is better by chance."
    return Chart("model-costs", "What each table costs", caption, {"data": [bar], "layout": layout})
