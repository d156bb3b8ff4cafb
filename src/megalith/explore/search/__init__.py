"""Joint search over placement, schedule and network: what `megalith explore search` asks.

    search(load_job("405b-2-regions-16k-30ms")).best.job

space/         the plans there are, as a tree of four decisions
bounds/        lower bounds: what no plan below a node of the tree can beat
algorithms/    best-first search of the tree, then small changes of good plans
cluster_search.py, joint_search.py    all of it together, on one cluster and on smaller ones
analysis/      what the answer says beside the best plan: why, what it costs, what would help
"""

from __future__ import annotations

from megalith.explore.search.joint_search import search
from megalith.explore.search.result import RankedPlan, SearchResult, Sensitivity

__all__ = ["RankedPlan", "SearchResult", "Sensitivity", "search"]
