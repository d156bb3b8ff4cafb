"""A recipe: everything a run needs, as one YAML file with nothing left to flags.

It is composed of the configs of what it sets up, each of which is beside its class. A recipe is found by the
name of one that ships with the package, by its path, or in a run's folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.core.config import Config, apply_overrides, load_yaml, parse_config, with_kinds_replaced
from megalith.core.errors import ConfigError, nearest
from megalith.data.ingest.tier import IngestConfig
from megalith.data.places import is_remote
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.settings import TieredMemory
from megalith.models.registry import AnyModel
from megalith.train.learner.dense_optimizer import AdamConfig, DenseOptimizer
from megalith.train.learner.embeddings import EmbeddingsConfig, ShardingConfig
from megalith.train.learner.learner import LearnerConfig
from megalith.train.loaders import DataConfig
from megalith.train.loop import LoopConfig
from megalith.train.publishing.settings import PublishConfig
from megalith.train.schedule import ScheduleConfig

RECIPES = Path(__file__).parent / "recipes"


class Recipe(Config):
    """One complete run. `data.batch_size` counts the samples of a step on all ranks together."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    """Of the run, and of its folder under runs/ unless --out names another."""
    data: DataConfig
    """What is read."""
    ingest: IngestConfig = IngestConfig()
    """Who reads it: threads of the trainer, or reader processes."""
    model: AnyModel
    """What scores a sample; `kind` says which."""
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    """How rows of tables are updated, and what holds them."""
    dense: DenseOptimizer = AdamConfig()
    """The optimizer of everything but tables; `kind` says which."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How learning rates change over the run, those of tables too."""
    train: LoopConfig = LoopConfig(epochs=1)
    """How long, and what is reported, evaluated and saved on the way."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Whether checkpoints have all rows or those that changed, and how exactly."""
    publish: PublishConfig | None = None
    """Versions of the model go to a place that servers follow, while it trains."""
    sharding: ShardingConfig = ShardingConfig()
    """How tables are cut over processes."""
    memory: TieredMemory | None = None
    """Tables may be larger than memory: `dram` bytes of their rows are kept in it, on every rank."""
    adaptive: AdaptivePolicy | None = None
    """Tables are to be smaller: rows are cut into chunks, of which only the useful live."""

    @model_validator(mode="after")
    def _growing_data_has_no_epochs(self) -> Recipe:
        if self.data.growing is not None and self.train.steps is None:
            raise ValueError("data.growing has no epochs: give train.steps, the most that the run may take")
        return self

    def learner_config(self, rows: Path | None = None, total_steps: int = 0) -> LearnerConfig:
        """What a learner takes of the recipe; `rows` is the folder of tiered tables, if there are any.

        `total_steps` are those of the run, 0 where it is not trained.
        """
        memory, adaptive = self.memory, self.adaptive
        return LearnerConfig(
            self.model,
            self.embeddings,
            self.dense,
            self.train.seed,
            self.train.clip_norm,
            self.data.batch_size,
            None if memory is None else memory.model_copy(update={"path": rows}),
            None if adaptive is None else adaptive.for_steps(total_steps),
            trains=total_steps > 0,
            clip_tables=self.train.clip_tables,
        )


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(
    name_or_path: str | Path, overrides: Sequence[str] = (), tell: Callable[[str], None] = warnings.warn
) -> Recipe:
    """The recipe of that name or at that path, with `a.b=c` overrides laid over it.

    Files that the recipe names are relative to its own folder, so that it runs from anywhere; those that an
    override names, and the data, are relative to the working directory. Keys that a kind which an override
    names does not have are dropped, and `tell` is told so.
    """
    path = find_recipe(name_or_path)
    content = _with_paths(load_yaml(path), path.parent)
    content = _with_paths(apply_overrides(content, overrides), Path())
    content, dropped = with_kinds_replaced(Recipe, content, overrides)
    if dropped:
        tell(f"Not used, as the kind that was asked for has no such key: {', '.join(dropped)} of {path}.")
    return parse_config(Recipe, _with_one_end(content, overrides), str(path), overrides=overrides)


def _with_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The files that a recipe names, as absolute paths."""
    model, sharding, memory = content.get("model"), content.get("sharding"), content.get("memory")
    data = content.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        data["path"] = _place(data["path"])
    publish = content.get("publish")
    if isinstance(publish, dict) and isinstance(publish.get("uri"), str):
        publish["uri"] = _place(publish["uri"])
    raw = data.get("raw") if isinstance(data, dict) else None
    for key in ("vocabulary_from", "valid"):
        if isinstance(raw, dict) and isinstance(raw.get(key), str):
            raw[key] = _place(raw[key])
    if isinstance(memory, dict) and isinstance(memory.get("path"), str):
        memory["path"] = _absolute(memory["path"], folder)
    if isinstance(model, dict) and model.get("kind") == "custom" and isinstance(model.get("file"), str):
        model["file"] = _absolute(model["file"], folder)
    if isinstance(sharding, dict) and isinstance(sharding.get("plan"), str) and sharding["plan"] != "auto":
        sharding["plan"] = _absolute(sharding["plan"], folder)
    return content


def _place(name: str) -> str:
    """Where data is: a path as an absolute one, a URI as it is."""
    if is_remote(name):
        return name
    # Not resolved: where a link leads may change between two starts.
    with suppress(RuntimeError):
        return str(Path(name).expanduser().absolute())
    return name


def _absolute(name: str, folder: Path) -> str:
    try:
        return str((folder / Path(name).expanduser()).resolve())
    except (RuntimeError, ValueError, OSError):
        # No such user, or no path at all; whoever opens it says so.
        return name


def _with_one_end(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A run ends after epochs or after steps: who asks for one of them no longer wants the recipe's other."""
    named = {override.partition("=")[0].strip() for override in overrides}
    loop = content.get("train")
    for asked, other in (("steps", "epochs"), ("epochs", "steps")):
        only = f"train.{asked}" in named and f"train.{other}" not in named
        if only and isinstance(loop, dict) and loop.get(asked) is not None:
            loop.pop(other, None)
    return content


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe: a path to YAML, the `config.yaml` of a run folder, or one that ships by name."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    if (path / "config.yaml").is_file():
        return path / "config.yaml"
    shipped = RECIPES / f"{name_or_path}.yaml"
    if not shipped.is_file():
        choices = nearest(str(name_or_path), recipe_names())
        raise ConfigError(f"No recipe '{name_or_path}': {choices} A path must end in .yaml.")
    return shipped
