"""Reports: a run's folder, a saved benchmark or a plan in, one HTML file out that opens anywhere and asks the
network for nothing.

shell.py         the file around every page: style, sections, charts
collect.py       what the files of a run say
timing.py        where its time went, from its trace
waits.py         where the time of each rank went, and for whom it waited, from the traces of all
load.py          what a run says of its machine: anomalies, a step, ranks, memory
tables.py        how large its embedding tables are and how uneven the traffic on them is
charts/          the charts of a run, as plotly.js figures
html_tables.py   tables of a page, without empty columns
page.py          the page of a run; page.css and page.js lie beside it
bench_page.py    the page of a saved benchmark
compare/         the page of several runs
plan_page.py     the page of a sharding plan: load by worker, tables
model_page.py    the page of an exported model: the gate, costs of tables and layers
explore/         the pages of the Explorer: a predicted step, a search
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The Explorer's pages need no torch and the others do, so each is imported when it is asked for.
_HOMES = {
    "write_bench_report": "bench_page",
    "write_comparison": "compare",
    "write_journey": "compare.journey",
    "write_model_report": "model_page",
    "write_plan_report": "plan_page",
    "write_prediction_report": "explore",
    "write_report": "page",
    "write_search_report": "explore",
}
__all__ = [
    "write_bench_report",
    "write_comparison",
    "write_journey",
    "write_model_report",
    "write_plan_report",
    "write_prediction_report",
    "write_report",
    "write_search_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
