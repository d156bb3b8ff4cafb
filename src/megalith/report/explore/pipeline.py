"""The pipeline of a simulated step as a picture: devices down, time across, links below them.

It is drawn as SVG with one path for each kind of work, however many spans there are, and with the colours of
the page's style, so that thousands of spans stay light and one picture is right in light and in dark. Where
boxes are narrower than a pixel, what most of a pixel's time went to is drawn instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from megalith.core.units import format_duration
from megalith.explore.pipeline.chrome_trace import link_name
from megalith.explore.pipeline.timeline import Timeline, TimelineSpan
from megalith.report.html_tables import shorten

WIDTH = 1120
_LABELS = 116
_AXIS = 22
_MOST_BOXES = 14_000
_MOST_NUMBERS = 1_200
_MOST_LINKS = 6
_MOST_DEVICES = 64
_WINDOW_OPS = 44

KINDS = {
    "F": "forward",
    "B": "input gradient",
    "W": "weight gradient",
    "BW": "backward",
    "FB": "forward beside a backward",
    "forward": "activations sent",
    "backward": "gradients of activations sent",
    "parameters": "parameters gathered",
    "gradient": "gradients reduced",
    "optimizer": "optimizer",
}


@dataclass(frozen=True, slots=True)
class PipelinePicture:
    """An SVG of the pipeline with its title and caption."""

    title: str
    caption: str
    svg: str


def pipeline_pictures(timeline: Timeline) -> list[PipelinePicture]:
    """The whole step and, when its boxes are too narrow to be told apart, its beginning."""
    spans = _joined(timeline.spans)
    if not spans:
        return []
    rows = _rows(timeline)
    end = max(span.end for span in spans)
    each = _count(span.resource for span in spans if isinstance(span.resource, int))
    pictures = []
    busiest = max(each.values(), default=0)
    bubble = f"{timeline.bubble_rate:.1%} of the time from first to last operation is bubble"
    pictures.append(PipelinePicture("The whole step", f"{bubble}.", _svg(spans, rows, 0.0, end)))
    if busiest > 2 * _WINDOW_OPS:
        first = [span for span in spans if span.resource == 0]
        until = sorted(span.end for span in first)[_WINDOW_OPS]
        inside = [span for span in spans if span.start < until]
        shaded = "chunk" if any(span.chunk > 0 for span in inside) else "one"
        caption = (
            f"The first {_WINDOW_OPS} operations of the first device; numbers are micro-batches, and every "
            f"other {shaded} has a lighter shade."
        )
        pictures.append(PipelinePicture("Its beginning", caption, _svg(inside, rows, 0.0, until)))
    return pictures


def legend_html(timeline: Timeline) -> str:
    """The colours of the kinds of work that the timeline has."""
    kinds = {span.kind for span in timeline.spans}
    keys = [
        f'<span class="key"><i class="k-{kind}"></i>{name}</span>'
        for kind, name in KINDS.items()
        if kind in kinds
    ]
    return f'<p class="legend">{"".join(keys)}</p>'


def _joined(spans: Sequence[TimelineSpan]) -> list[TimelineSpan]:
    """An operation that ran in pieces (as parameters came in) is one box, if nothing lies between them."""
    joined: list[TimelineSpan] = []
    last: dict[Hashable, int] = {}
    for span in sorted(spans, key=lambda span: span.start):
        at = last.get(span.resource)
        if at is not None:
            before = joined[at]
            touching = span.start - before.end <= 1e-6 * (span.end - before.start)
            if touching and span[:4] == before[:4]:
                joined[at] = before._replace(end=span.end)
                continue
        last[span.resource] = len(joined)
        joined.append(span)
    return joined


def _rows(timeline: Timeline) -> dict[Hashable, str]:
    """Place -> label: every device (or an even pick of very many), then the links that are busiest."""
    devices = range(len(timeline.compute_seconds))
    stride = -(-len(devices) // _MOST_DEVICES)
    rows: dict[Hashable, str] = {device: f"stage {device}" for device in devices[::stride]}
    busy = sorted(timeline.link_busy_seconds.items(), key=lambda item: -item[1])
    shown = {span.resource for span in timeline.spans}
    links = [link for link, seconds in busy if seconds > 0 and link in shown][:_MOST_LINKS]
    rows |= {link: link_name(link) for link in links}
    return rows


def _svg(spans: Sequence[TimelineSpan], rows: dict[Hashable, str], begin: float, end: float) -> str:
    pitch = max(7.0, min(24.0, 380 / max(1, len(rows))))
    box = pitch - (3 if pitch > 14 else 1.5)
    height = round(pitch * len(rows) + _AXIS)
    scale = (WIDTH - _LABELS - 4) / ((end - begin) or 1.0)
    tops = {place: place_index * pitch for place_index, place in enumerate(rows)}
    inside = [span for span in spans if span.resource in tops and span.end > begin and span.start < end]
    parts = [
        f'<svg class="pipeline" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="What every stage does over time">'
    ]
    devices = sum(isinstance(place, int) for place in rows)
    step = -(-devices // 32)
    for index, (place, label) in enumerate(rows.items()):
        top = tops[place]
        parts.append(
            f'<rect class="lane" x="{_LABELS}" y="{top:.1f}" width="{WIDTH - _LABELS}" height="{box:.1f}"/>'
        )
        if not isinstance(place, int) or index % step == 0:
            middle = top + box / 2 + 3.5
            parts.append(f'<text x="{_LABELS - 8}" y="{middle:.1f}" text-anchor="end">{_label(label)}</text>')
    # Shades tell chunks apart where a device has several, else one micro-batch from the next.
    by_chunk = any(span.chunk > 0 for span in inside)
    boxes = (
        [_box(span, begin, end, scale, by_chunk) for span in inside]
        if len(inside) <= _MOST_BOXES
        else _rasterised(inside, begin, end, scale)
    )
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    for place, kind, shade, left, width in boxes:
        paths[kind, shade].append(f"M{left:.1f} {tops[place]:.1f}h{width:.1f}v{box:.1f}h-{width:.1f}z")
    for (kind, shade), pieces in sorted(paths.items()):
        parts.append(f'<path class="k-{kind}{" other" if shade else ""}" d="{"".join(pieces)}"/>')
    if len(inside) <= _MOST_NUMBERS and box >= 11:
        parts += _numbers(inside, tops, box, begin, end, scale)
    parts += _ticks(begin, end, scale, height)
    parts.append("</svg>")
    return "".join(parts)


SpanBox = tuple[Hashable, str, int, float, float]


def _box(span: TimelineSpan, begin: float, end: float, scale: float, by_chunk: bool = False) -> SpanBox:
    left = _LABELS + (max(span.start, begin) - begin) * scale
    width = (min(span.end, end) - max(span.start, begin)) * scale
    # A hair of room between neighbours, as long as there is any.
    width = max(0.3, width - (0.7 if width > 3 else 0.0))
    return span.resource, span.kind, (span.chunk if by_chunk else span.micro_batch) % 2, left, width


def _rasterised(spans: Sequence[TimelineSpan], begin: float, end: float, scale: float) -> list[SpanBox]:
    """Runs of whole pixels, each of the kind that took most of it."""
    taken: dict[Hashable, dict[int, dict[str, float]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(float))
    )
    for span in spans:
        first = (max(span.start, begin) - begin) * scale
        last = (min(span.end, end) - begin) * scale
        for pixel in range(int(first), int(last) + 1):
            share = min(last, pixel + 1) - max(first, pixel)
            if share > 0:
                taken[span.resource][pixel][span.kind] += share
    boxes: list[SpanBox] = []
    for place, pixels in taken.items():
        run: list[tuple[int, str]] = []
        for pixel in sorted(pixels):
            kind, share = max(pixels[pixel].items(), key=lambda item: item[1])
            if sum(pixels[pixel].values()) < 0.5:
                continue
            if run and (run[-1][0] + 1 != pixel or run[-1][1] != kind):
                boxes.append((place, run[0][1], 0, _LABELS + run[0][0], float(len(run))))
                run = []
            run.append((pixel, kind))
        if run:
            boxes.append((place, run[0][1], 0, _LABELS + run[0][0], float(len(run))))
    return boxes


def _numbers(
    spans: Sequence[TimelineSpan],
    tops: dict[Hashable, float],
    box: float,
    begin: float,
    end: float,
    scale: float,
) -> list[str]:
    texts = []
    for span in spans:
        if span.kind not in ("F", "B", "W", "BW", "FB"):
            continue
        _, _, _, left, width = _box(span, begin, end, scale)
        if width >= 6.5 * len(str(span.micro_batch)) + 4:
            across, down = left + width / 2, tops[span.resource] + box / 2 + 3.5
            texts.append(f'<text x="{across:.1f}" y="{down:.1f}">{span.micro_batch}</text>')
    return [f'<g class="numbers" text-anchor="middle">{"".join(texts)}</g>'] if texts else []


def _ticks(begin: float, end: float, scale: float, height: int) -> list[str]:
    step = _round_step((end - begin) / 8)
    ticks = []
    for number in range(int((end - begin) / step) + 1):
        seconds = number * step
        left = _LABELS + seconds * scale
        if left > WIDTH - 24:
            break
        label = format_duration(begin + seconds)
        ticks.append(
            f'<path class="tick" d="M{left:.1f} 0V{height - _AXIS + 3}"/>'
            f'<text x="{left:.1f}" y="{height - 4}" text-anchor="middle">{label}</text>'
        )
    return ticks


def _round_step(rough: float) -> float:
    power: float = 10 ** floor(log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _label(label: str) -> str:
    """The name of a row, cut where it is long; the whole of it shows on hover."""
    if len(label) <= 18:
        return escape(label)
    return f"<title>{escape(label)}</title>{escape(shorten(label, 18))}"


def _count(places: Iterable[Hashable]) -> dict[Hashable, int]:
    counts: dict[Hashable, int] = defaultdict(int)
    for place in places:
        counts[place] += 1
    return counts
