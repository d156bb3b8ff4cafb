"""The page that every report is written into: style, sections, charts, in one HTML file.

plotly.js, the style and the figures are written into the file, so it can be sent, archived and opened
without a network; a page without charts leaves plotly.js out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its heading and one sentence for those who cannot see it."""

    key: str
    title: str
    caption: str
    figure: Figure
    height: int = 320


def html_page(title: str, body: str, shown: Sequence[Chart | None], style: str = "") -> str:
    """The file around a body; `style` is added to the style of all pages."""
    figures = [
        {"key": chart.key, "height": chart.height, "figure": chart.figure}
        for chart in shown
        if chart is not None
    ]
    css = (_HERE / "page.css").read_text(encoding="utf-8") + style
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # The browser enforces it: nothing is fetched, from anywhere.
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            # Without it browsers ask the server for /favicon.ico.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)} · Megalith report</title>",
            f"<style>{css}</style></head>",
            f"<body><main>{body}</main>",
            *(_scripts(figures) if figures else ()),
            "</body></html>\n",
        )
    )


def _scripts(figures: Sequence[Figure]) -> tuple[str, ...]:
    from plotly.offline import get_plotlyjs

    return (
        "<noscript>The charts need JavaScript; the numbers above do not.</noscript>",
        f'<script type="application/json" id="charts">{_script_json(figures)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{(_HERE / 'page.js').read_text(encoding='utf-8')}</script>",
    )


def section_html(title: str, content: str) -> str:
    """A section with its heading; nothing where it has no content."""
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def tile_html(name: str, value: str, note: str) -> str:
    """A headline number with its name and a note."""
    return (
        f'<div class="card tile"><div class="name">{name}</div><div class="value">{value}</div>'
        f'<div class="note">{note}</div></div>'
    )


def footer_html() -> str:
    """Which version made the page, and when."""
    return (
        f"<footer>Made by Megalith {package_version('megalith')} on {datetime.now():%Y-%m-%d %H:%M}. "
        "This file needs no network.</footer>"
    )


def figures_html(charts: Sequence[Chart | None]) -> str:
    """The charts of a section, two side by side."""
    shown = [chart for chart in charts if chart is not None]
    # An odd one at the end takes the whole width instead of leaving a hole.
    odd = len(shown) - 1 if len(shown) % 2 else None
    figures = [
        f'<figure class="card{" wide" if index == odd else ""}"><h3>{chart.title}</h3>'
        f"<figcaption>{code_html(chart.caption)}</figcaption>"
        f'<div class="plot" id="chart-{chart.key}" role="img" aria-label="{escape(chart.title)}. '
        f'{escape(chart.caption)}" style="min-height:{chart.height}px"></div></figure>'
        for index, chart in enumerate(shown)
    ]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def code_html(text: str) -> str:
    """Escaped text with `such words` in a monospaced face."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def package_version(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _script_json(content: Any) -> str:
    """JSON that no text inside it can break out of the script element."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
