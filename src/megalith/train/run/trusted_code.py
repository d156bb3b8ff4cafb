"""A run whose model is a Python file of one's own runs that file. From a stranger's folder it must not.

Recipes that a person trains are trusted, by the checksum of their file, in a list of that person's
(`$XDG_STATE_HOME/megalith/trusted_code`). A run folder whose model is not in the list is refused until
`--trust-code` says that its code was read.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from megalith.core.errors import ConfigError
from megalith.models.custom import CustomConfig
from megalith.train.recipe import Recipe


def trust_code(recipe: Recipe) -> None:
    """Remembers that the person who runs this wants the recipe's own code to run."""
    digest = code_digest(recipe)
    path = _list()
    if digest is None or digest in _trusted(path):
        return
    # Where it cannot be written, --trust-code is asked for every time.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{digest}\n")


def check_code(recipe: Recipe, run: Path) -> None:
    """Refuses a run folder whose model is code that this person has not trained with or trusted."""
    digest = code_digest(recipe)
    if digest is None or digest in _trusted(_list()):
        return
    assert isinstance(recipe.model, CustomConfig)
    raise ConfigError(
        f"The model of {run} is code in {recipe.model.file} that was not trained with here before, or has "
        "changed since; read it, then pass --trust-code to run it."
    )


def code_digest(recipe: Recipe) -> str | None:
    """The checksum of a recipe's own code; None if it has none, or no file of that name."""
    if not isinstance(recipe.model, CustomConfig) or not recipe.model.file.is_file():
        return None
    return hashlib.sha256(recipe.model.file.read_bytes()).hexdigest()


def _trusted(path: Path) -> set[str]:
    with suppress(OSError, UnicodeDecodeError):
        return set(path.read_text(encoding="utf-8").split())
    return set()


def _list() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "megalith" / "trusted_code"
