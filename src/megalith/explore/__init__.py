"""Plan training across buildings and regions: a model, a cluster and a plan in, a simulated step out.

    from megalith.explore import load_job, predict, search
    predict(load_job("job.yaml")).step_seconds

Names load on first use, so that one command imports only what it needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megalith.explore.candidates import lower_bound_seconds
    from megalith.explore.job import Job
    from megalith.explore.load import load_job, resolve_cluster
    from megalith.explore.pipeline.schedules import build_schedule
    from megalith.explore.pipeline.simulate import simulate
    from megalith.explore.predict import predict
    from megalith.explore.prediction import Prediction
    from megalith.explore.search import search
    from megalith.explore.validation import validate

_HOMES = {
    "Job": "job",
    "Prediction": "prediction",
    "build_schedule": "pipeline.schedules",
    "load_job": "load",
    "lower_bound_seconds": "candidates",
    "predict": "predict",
    "resolve_cluster": "load",
    "search": "search",
    "simulate": "pipeline.simulate",
    "validate": "validation",
}

__all__ = [
    "Job",
    "Prediction",
    "build_schedule",
    "load_job",
    "lower_bound_seconds",
    "predict",
    "resolve_cluster",
    "search",
    "simulate",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'megalith.explore' has no attribute '{name}'")
    return getattr(import_module(f"megalith.explore.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Two functions are in modules of their own name. Importing such a module would bind it here under that
    name; the function is what is meant."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
