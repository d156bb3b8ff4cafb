"""Finding a recipe: by the name of one that ships with the package, by path, or in a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megalith.core.config import apply_overrides, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.train.config import Recipe

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name or at that path, with `a.b=c` overrides laid over it."""
    path = find_recipe(name_or_path)
    content = apply_overrides(load_yaml(path), overrides)
    model = content.get("model")
    if isinstance(model, dict) and model.get("kind") == "custom" and model.get("file"):
        # A model's file is named from where the recipe lies, so that a recipe runs from any folder.
        model["file"] = str((path.parent / Path(model["file"]).expanduser()).resolve())
    sharding = content.get("sharding")
    if isinstance(sharding, dict) and sharding.get("plan", "auto") not in ("auto", None):
        sharding["plan"] = str((path.parent / Path(sharding["plan"]).expanduser()).resolve())
    return parse_config(Recipe, content, str(path))


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
