"""Pictures of `card_guidance.py` as SVG: readable without a script, in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

CHANGES = ("memory bandwidth", "link", "TOPS", "card memory", "cards", "host")
PARTS = {
    "host": "#4477aa",
    "ids to cards": "#66ccee",
    "lookups": "#228833",
    "vectors between cards": "#ccbb44",
    "dense inputs": "#ee6677",
    "dense part": "#aa3377",
}
STYLE = """
    .page { fill: #ffffff }
    .cell { fill: #2f6fb0 }
    .worse { fill: #c0504d }
    .edge { stroke: #7a86a8; fill: none }
    text { fill: #1d2333; font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
    .head { font-weight: 600 }
    .small { font-size: 12px }
    @media (prefers-color-scheme: dark) {
      .page { fill: #1b1e27 }
      .cell { fill: #5b9be0 }
      .worse { fill: #e07a77 }
      text { fill: #e6e9f2 }
    }
"""


class Svg:
    """Lines of a picture of one width, as high as what is put into it."""

    def __init__(self, title: str, description: str, width: int = 960) -> None:
        self.title, self.description, self.width = title, description, width
        self.lines: list[str] = []

    def text(self, x: float, y: float, words: str, classes: str = "", anchor: str = "start") -> None:
        """A line of text."""
        self.lines.append(
            f'<text x="{x:.0f}" y="{y:.0f}" class="{classes}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, attributes: str) -> None:
        """A rectangle."""
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" {attributes}/>'
        )

    def write(self, path: Path, height: float) -> None:
        """The file."""
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:.0f}" role="img" '
            f'aria-labelledby="title desc">\n  <title id="title">{escape(self.title)}</title>\n'
            f'  <desc id="desc">{escape(self.description)}</desc>\n  <style>{STYLE}  </style>\n'
            f'  <rect class="page" width="{self.width}" height="{height:.0f}" rx="8"/>\n  '
            + "\n  ".join(self.lines)
            + "\n</svg>\n",
            encoding="utf-8",
        )


def _cell(svg: Svg, x: float, y: float, width: float, factor: float, words: str) -> None:
    """A number on a ground that is darker the further the factor is from 1."""
    shade = min(abs(factor - 1), 1.0)
    kind = "cell" if factor >= 1 else "worse"
    svg.box(x, y, width, 26, f'class="{kind}" fill-opacity="{0.04 + 0.56 * shade:.2f}" rx="3"')
    svg.text(x + width / 2, y + 18, words, "head" if shade > 0.1 else "small", "middle")


def draw_guidance(
    path: Path, found: Sequence[Mapping[str, Any]], hosts: Mapping[str, str], models: Sequence[str]
) -> None:
    """Hosts one below the other: models down, what is doubled across, the rate as a multiple."""
    svg = Svg(
        "What would raise the rate of each model on each host",
        "The rate with one thing doubled, as a multiple of the rate now, for five models on three hosts.",
    )
    y, wide, left = 34, 108, 250
    svg.text(20, y, "Requests a second with one thing doubled (predicted; 1.00 is no gain)", "head")
    for host, name in hosts.items():
        y += 34
        svg.text(20, y, name, "head")
        svg.text(110, y, "bound by", "small")
        for column, change in enumerate(CHANGES):
            svg.text(
                left + column * (wide + 6) + wide / 2,
                y,
                f"2x {change.removeprefix('memory ')}",
                "small",
                "middle",
            )
        for one in [
            one for model in models for one in found if (one["hardware"], one["model"]) == (host, model)
        ]:
            y += 10
            guidance = one["guidance"]
            svg.text(36, y + 18, one["model"])
            svg.text(110, y + 18, guidance["now"]["bound_by"], "small")
            rates = {gain["change"]: gain["rate"] for gain in guidance["gains"]}
            for column, change in enumerate(CHANGES):
                _cell(svg, left + column * (wide + 6), y, wide, rates[change], f"{rates[change]:.2f}")
            y += 20
        y += 10
    svg.write(path, y + 16)


def draw_latency(
    path: Path, found: Sequence[Mapping[str, Any]], hosts: Mapping[str, str], models: Sequence[str]
) -> None:
    """What a request of 270 items waits for, as bars of one scale for each model."""
    svg = Svg(
        "What a request waits for",
        "Seconds of a request alone by what it waits for, for five models on three hosts.",
    )
    y, left, room = 34, 200, 640
    svg.text(20, y, "A request of 270 items alone: milliseconds by what it waits for (predicted)", "head")
    x = 20.0
    y += 26
    for part, colour in PARTS.items():
        svg.box(x, y - 11, 14, 14, f'fill="{colour}" rx="2"')
        svg.text(x + 20, y + 1, part, "small")
        x += 36 + 7 * len(part)
    longest = max(one["prediction"]["latency_seconds"] for one in found)
    for model in models:
        y += 14
        for host, name in hosts.items():
            one = next(one for one in found if (one["hardware"], one["model"]) == (host, model))
            y += 22
            if host == next(iter(hosts)):
                svg.text(20, y + 13, model, "head")
            svg.text(left - 10, y + 13, name, "small", "end")
            x = float(left)
            for part, colour in PARTS.items():
                width = room * one["prediction"]["latency_parts"][part] / longest
                if width > 0:
                    svg.box(x, y, width, 18, f'fill="{colour}"')
                x += width
            svg.text(x + 8, y + 13, f"{1e3 * one['prediction']['latency_seconds']:.2f} ms", "small")
    svg.write(path, y + 36)


def draw_lessons(path: Path, found: Sequence[Mapping[str, Any]], models: Sequence[str]) -> None:
    """The rate without each lesson on NNP-I, half of the tables the user's."""
    first = [one for one in found if one["hardware"] == "yosemite-v2"]
    svg = Svg(
        "What each lesson is worth",
        "The rate on six NNP-I without one of the ways to move less, as a share of the rate with all.",
    )
    y, wide, left = 34, 100, 330
    svg.text(
        20, y, "Requests a second on six NNP-I without one lesson (predicted; all taken is 1.00)", "head"
    )
    y += 34
    for column, model in enumerate(models):
        svg.text(left + column * (wide + 6) + wide / 2, y, model, "head", "middle")
    for row, lesson in enumerate(first[0]["lessons_half_by_users"]):
        y += 10
        svg.text(20, y + 18, lesson["name"])
        for column, model in enumerate(models):
            one = next(one for one in first if one["model"] == model)
            rate = one["lessons_half_by_users"][row]["rate"]
            x = left + column * (wide + 6)
            _cell(svg, x, y, wide, 1 / rate if rate else 0.0, f"{1 / rate:.2f}" if rate else "does not fit")
        y += 20
    svg.text(20, y + 30, "Every second table is the user's, so that looking it up once counts.", "small")
    svg.write(path, y + 46)
