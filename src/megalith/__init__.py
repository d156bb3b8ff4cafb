"""Megalith: train, shrink, serve and plan recommendation models larger than any one memory.

Names load on first use, so that `import megalith` costs milliseconds and never imports torch by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megalith.core.errors import MegalithError
    from megalith.core.schema import FeatureSpec, TableSpec
    from megalith.data.batch import Batch
    from megalith.data.dataset import Dataset
    from megalith.data.loader import Loader
    from megalith.embeddings.collection import EmbeddingCollection
    from megalith.embeddings.module.gradient_norm import clip_grad_norm_
    from megalith.embeddings.optimizers import LAMB, LARS, SGD, AdaGrad, Adam, RowWiseAdaGrad, RowWiseAdam
    from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
    from megalith.embeddings.stores.settings import TieredMemory
    from megalith.export.model import load_model
    from megalith.sharding.plan import ShardingPlan
    from megalith.sharding.planner.planner import make_plan
    from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
    from megalith.train.recipe import load_recipe
    from megalith.train.scoring.loaded_run import load_run
    from megalith.train.trainer import Trainer

__version__ = "0.1.0"

_HOMES = {
    "AdaGrad": "megalith.embeddings.optimizers",
    "Adam": "megalith.embeddings.optimizers",
    "AdaptivePolicy": "megalith.embeddings.stores.adaptive.settings",
    "Batch": "megalith.data.batch",
    "Dataset": "megalith.data.dataset",
    "EmbeddingCollection": "megalith.embeddings.collection",
    "FeatureSpec": "megalith.core.schema",
    "LAMB": "megalith.embeddings.optimizers",
    "LARS": "megalith.embeddings.optimizers",
    "Loader": "megalith.data.loader",
    "MegalithError": "megalith.core.errors",
    "RowWiseAdaGrad": "megalith.embeddings.optimizers",
    "RowWiseAdam": "megalith.embeddings.optimizers",
    "SGD": "megalith.embeddings.optimizers",
    "ShardedEmbeddingCollection": "megalith.sharding.runtime.collection",
    "ShardingPlan": "megalith.sharding.plan",
    "TableSpec": "megalith.core.schema",
    "TieredMemory": "megalith.embeddings.stores.settings",
    "Trainer": "megalith.train.trainer",
    "clip_grad_norm_": "megalith.embeddings.module.gradient_norm",
    "load_model": "megalith.export.model",
    "load_recipe": "megalith.train.recipe",
    "load_run": "megalith.train.scoring.loaded_run",
    "make_plan": "megalith.sharding.planner.planner",
}

__all__ = [
    "AdaGrad",
    "Adam",
    "AdaptivePolicy",
    "Batch",
    "Dataset",
    "EmbeddingCollection",
    "FeatureSpec",
    "LAMB",
    "LARS",
    "Loader",
    "MegalithError",
    "RowWiseAdaGrad",
    "RowWiseAdam",
    "SGD",
    "ShardedEmbeddingCollection",
    "ShardingPlan",
    "TableSpec",
    "TieredMemory",
    "Trainer",
    "clip_grad_norm_",
    "load_model",
    "load_recipe",
    "load_run",
    "make_plan",
]


if not TYPE_CHECKING:
    # A type checker sees the imports above, and that any other name is a mistake.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'megalith' has no attribute '{name}'")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
