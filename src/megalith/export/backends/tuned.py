"""What `--tune` found, kept in the manifest of a model."""

from __future__ import annotations

from pathlib import Path

from megalith.export.backends.tune import Tuning
from megalith.export.folder import read_manifest, write_manifest
from megalith.export.manifest import TuneRecord
from megalith.hardware.machine import this_machine


def keep_tuning(folder: Path, tuning: Tuning) -> None:
    """Writes the best backend into the manifest of a folder; nothing else of it changes."""
    best = tuning.best
    seconds = {str(batch): timing.median for batch, timing in best.timings.items()}
    record = TuneRecord(cpu=this_machine().cpu, threads=best.threads, seconds=seconds)
    changes = {"backend": best.choice, "tuning": record}
    write_manifest(folder, read_manifest(folder).model_copy(update=changes))
