"""One run: a method, a ratio and a seed in; quality on every split and all bytes out."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from megalith.bench.adaptive.methods import Method, Settings
from megalith.bench.adaptive.problem import InfeasibleError, SizeProblem
from megalith.bench.adaptive.rivals.head import RivalModel, VectorHead
from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.learner.dense_optimizer import AdamConfig, DenseOptimizer, SGDConfig
from megalith.train.learner.learner import Learner, LearnerConfig
from megalith.train.loaders import train_loader
from megalith.train.loop import LoopSteps
from megalith.train.pipeline import Pipeline
from megalith.train.recipe import Recipe
from megalith.train.schedule import lr_factor

EVALUATED = ("valid", "test")
METRICS = ("auc", "log_loss")


@dataclass(frozen=True)
class RunPoint:
    """What is run."""

    method: Method
    settings: Settings
    ratio: float
    """By how much all bytes shrink."""
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """As a record names it."""
        return {
            "method": self.method.name,
            "settings": self.settings,
            "ratio": self.ratio,
            "seed": self.seed,
        }


def run_point(recipe: Recipe, dataset: Dataset, point: RunPoint) -> dict[str, Any]:
    """Trains a method to the end and evaluates it; a record with `infeasible` where it cannot be so small."""
    started, cpu = time.perf_counter(), time.process_time()
    recipe = _seeded(recipe, point.seed)
    loader = train_loader(recipe.data, dataset, Ranks(), recipe.train.seed)
    assert isinstance(loader, Loader)
    steps = LoopSteps(recipe.train, len(loader)).total
    try:
        learner, problem = build_learner(recipe, dataset, point, steps)
    except InfeasibleError as error:
        loader.close()
        return {**point.key, "infeasible": str(error)}
    depth = train_learner(recipe, learner, loader, steps)
    quality = {}
    for split in EVALUATED:
        if split in dataset.schema.splits and dataset.split(split).rows:
            found = evaluate(learner, dataset, split, recipe.data, depth=depth)
            quality[split] = {metric: found[metric] for metric in METRICS}
    return {
        **point.key,
        "quality": quality,
        "bytes": bytes_of(learner, problem),
        "dense_bytes": problem.dense_bytes,
        "dense_weight_bytes": problem.dense_weight_bytes,
        "budget_bytes": problem.budget,
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }


def size_point(recipe: Recipe, dataset: Dataset, point: RunPoint) -> dict[str, Any]:
    """The bytes of a method that is built at its size, without training it."""
    recipe = _seeded(recipe, point.seed)
    try:
        learner, problem = build_learner(recipe, dataset, point, 1)
    except InfeasibleError as error:
        return {"infeasible": str(error)}
    return {"bytes": bytes_of(learner, problem), "dense_weight_bytes": problem.dense_weight_bytes}


def train_learner(recipe: Recipe, learner: Learner, loader: Loader, steps: int) -> int:
    """Takes all steps of a run; returns how many batches were prepared ahead."""
    depth = recipe.train.pipeline if learner.embeddings.prepares_ahead else 0
    pipeline = Pipeline(loader, learner.stages(trains=True), count=steps, depth=depth)
    for step, prepared in enumerate(pipeline):
        learner.step(prepared.batch, lr_factor(recipe.schedule, step, steps), prepared.resolved)
    pipeline.close()
    return depth


def bytes_of(learner: Learner, problem: SizeProblem) -> dict[str, int]:
    """All bytes by part, with projections and their state, and `total`."""
    parts = {name: count for name, count in asdict(learner.embeddings.bytes()).items() if name != "disk"}
    head = learner.dense
    weights = sum(one.numel() for one in head.projections.parameters()) if isinstance(head, VectorHead) else 0
    parts["projections"] = weights * (4 + problem.weight_state_bytes)
    return {**parts, "total": sum(parts.values())}


def build_learner(
    recipe: Recipe, dataset: Dataset, point: RunPoint, steps: int
) -> tuple[Learner, SizeProblem]:
    """A method's learner for a run of so many steps, and the size that it was given."""
    settings = dict(point.settings)
    rate = settings.pop("lr", 1.0)
    optimizer = recipe.embeddings.optimizer
    optimizer = optimizer.model_copy(update={"lr": optimizer.lr * rate})
    embeddings = recipe.embeddings.model_copy(update={"optimizer": optimizer})
    config = replace(recipe.learner_config(total_steps=steps), embeddings=embeddings)
    schema = dataset.schema
    problem = SizeProblem(
        tuple(recipe.model.tables(schema.categorical)),
        optimizer,
        point.ratio,
        steps,
        point.seed,
        _state_bytes(recipe.dense),
        frozenset(feature.name for feature in schema.categorical if feature.multi_hot),
    )
    if point.method.plan is None:
        return Learner(_own_tables(config, problem, point, settings), schema), problem
    plan = point.method.plan(problem, **settings)
    model = RivalModel(recipe.model, plan.stored, plan.sources)
    config = replace(config, model=cast(Any, model))
    return (
        Learner(config, schema, make_tables=lambda _: plan.make_tables(optimizer, recipe.train.seed)),
        problem,
    )


def _own_tables(
    config: LearnerConfig, problem: SizeProblem, point: RunPoint, settings: Settings
) -> LearnerConfig:
    """Dense tables, or adaptive ones under the budget."""
    if point.method.name == "none":
        return config
    _ = problem.exempt  # infeasible where these take all there is
    policy = AdaptivePolicy(ratio=point.ratio, **settings).for_steps(problem.total_steps)
    return replace(config, adaptive=policy)


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    if recipe.memory is not None or recipe.adaptive is not None or recipe.embeddings.stores:
        raise ConfigError(
            "The recipe says itself what holds its tables; remove `memory`, `adaptive` and "
            "`embeddings.stores` from it."
        )
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})


def _state_bytes(dense: DenseOptimizer) -> int:
    """State of one weight in the dense optimizer."""
    if isinstance(dense, AdamConfig):
        return 8
    has_state = dense.kind == "adagrad" or (isinstance(dense, SGDConfig) and dense.momentum > 0)
    return 4 if has_state else 0
