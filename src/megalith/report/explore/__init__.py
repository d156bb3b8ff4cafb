"""The Explorer's pages: a predicted step, a search.

page.py          the two pages; explore.css lies beside it
cluster_map.py   the cluster by levels, and what crosses each
pipeline.py      the simulated step as a picture
parts.py         tiles, bars, tables, the Pareto front
"""

from __future__ import annotations

from megalith.report.explore.page import write_prediction_report, write_search_report

__all__ = ["write_prediction_report", "write_search_report"]
