"""Models by name (YAML files beside this one), and transformers from a Hugging Face config.json."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from megalith.core.config import load_yaml
from megalith.core.errors import ConfigError, nearest
from megalith.explore.models.hugging_face import from_hugging_face

_FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def model_catalog() -> dict[str, dict[str, Any]]:
    """Name -> description, as `model:` in a job takes it."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        entries |= load_yaml(path)
    return {name: {"kind": "transformer", "name": name, **entry} for name, entry in entries.items()}


def describe_model(name: str) -> dict[str, Any]:
    """The description behind a catalog name or the path of a config.json."""
    if name.endswith(".json"):
        return from_hugging_face(Path(name))
    entries = model_catalog()
    if name not in entries:
        raise ConfigError(
            f"Unknown model '{name}'; {nearest(name, sorted(entries))} A path to a config.json works too."
        )
    return dict(entries[name])
