"""A folder that holds a run already; known before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from megalith.core.errors import StorageError


def refuse_existing(folder: Path) -> None:
    """Raises if the folder holds a run."""
    if (folder / "config.yaml").exists():
        raise StorageError(
            f"{folder} holds a run already; resume it with `megalith train {folder}`, or pass --overwrite or "
            "another --out."
        )
