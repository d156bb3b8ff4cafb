"""Training jobs across buildings and regions: the suite behind `megalith explore scenarios`.

Each YAML file here is a job without a plan: a model, a cluster of several sites, a batch. `run_scenarios`
finds the best plan for it and holds that against how it is done in production and the state of the art.

baselines.py    the production-like configuration, at its best
crosspipe.py    the state of the art (CrossPipe), at its best
suite.py        the rows: best plan, baselines, speed-ups, where gains come from
"""

from __future__ import annotations

from megalith.explore.scenarios.baselines import production
from megalith.explore.scenarios.suite import (
    ScenarioRow,
    ablation,
    check_routing,
    run_scenario,
    run_scenarios,
    scenario_jobs,
)

__all__ = [
    "ScenarioRow",
    "ablation",
    "check_routing",
    "production",
    "run_scenario",
    "run_scenarios",
    "scenario_jobs",
]
