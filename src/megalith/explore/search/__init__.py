"""Joint search over placement, schedule and network: what `megalith explore search` asks.

    search(load_job("405b-2-regions-16k-30ms")).best.job

layouts.py, choices.py, space.py    the plans there are, as a tree of four decisions
floors.py, dominance.py, tree.py    what can be ruled out, and the best-first search of the rest
moves.py, climb.py                  small changes of good plans
joint.py                            all of it together
pareto.py, sensitivity.py, explain.py, nearest.py, prices.py    what the answer says beside the best plan
"""

from __future__ import annotations

from megalith.explore.search.joint_search import search
from megalith.explore.search.result import Plan, SearchResult, Sensitivity

__all__ = ["Plan", "SearchResult", "Sensitivity", "search"]
