"""A simulated step for Chrome's and Perfetto's trace viewers: one lane for each device, one for each link."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from megalith.core.errors import PlanError
from megalith.core.trace import to_chrome
from megalith.explore.pipeline.timeline import Timeline

DEVICES, LINKS = 0, 1
"""Process numbers of the two groups of lanes."""


def write_chrome(timeline: Timeline, path: Path) -> None:
    """Writes the trace file; the timeline must come from `simulate(..., record=True)`."""
    to_chrome(trace_spans(timeline), path)


def trace_spans(timeline: Timeline) -> list[dict[str, Any]]:
    """The spans as `core.trace` has them, lanes in order: device 0, 1, ..., then links by name."""
    if not timeline.spans:
        raise PlanError("This step was simulated without its spans; simulate it with record=True first.")

    def lane(resource: Hashable) -> tuple[int, int, str]:
        return (DEVICES, resource, "") if isinstance(resource, int) else (LINKS, 0, link_name(resource))

    spans = []
    for span in sorted(timeline.spans, key=lambda span: (lane(span.resource), span.start)):
        device = isinstance(span.resource, int)
        attributes = {} if span.chunk < 0 else {"chunk": span.chunk, "micro_batch": span.micro_batch}
        name = span.kind if span.micro_batch < 0 else f"{span.kind} {span.micro_batch}"
        spans.append(
            {
                "name": name,
                "start": span.start,
                "duration": span.end - span.start,
                "thread": f"device {span.resource}" if device else f"link {link_name(span.resource)}",
                "process": DEVICES if device else LINKS,
                "attributes": attributes,
            }
        )
    return spans


def link_name(link: Hashable) -> str:
    """A link's name in one line: ("zone", 3) is "zone 3"."""
    if isinstance(link, tuple):
        return " ".join(link_name(part) for part in link)
    return str(link)
