"""Finding a recipe: by the name of one that ships with the package, by path, or in a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.core.config import apply_overrides, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.train.config import Recipe

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name or at that path, with `a.b=c` overrides laid over it.

    A file that the recipe names lies beside it, so that a recipe runs from any folder; one that an override
    names lies where the command is run.
    """
    path = find_recipe(name_or_path)
    content = _with_paths(load_yaml(path), path.parent)
    content = _with_paths(apply_overrides(content, overrides), Path())
    return parse_config(Recipe, _with_one_end(content, overrides), str(path))


def _with_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The files that a recipe names, as absolute paths."""
    model, sharding = content.get("model"), content.get("sharding")
    if isinstance(model, dict) and model.get("kind") == "custom" and isinstance(model.get("file"), str):
        model["file"] = _absolute(model["file"], folder)
    if isinstance(sharding, dict) and isinstance(sharding.get("plan"), str) and sharding["plan"] != "auto":
        sharding["plan"] = _absolute(sharding["plan"], folder)
    return content


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


def find_recipe(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    if (path / "config.yaml").is_file():
        return path / "config.yaml"
    shipped = RECIPES / f"{name_or_path}.yaml"
    if not shipped.is_file():
        raise ConfigError(
            f"No recipe '{name_or_path}': {nearest(name_or_path, recipe_names())} A path must end in .yaml."
        )
    return shipped
