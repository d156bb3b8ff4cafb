"""A run of the small recipe with tables on disk, to be killed anywhere: see killed_runs.py."""

from functools import partial

from small_recipes import outcome, trained

from megalith.embeddings.stores import tiered
from megalith.ops.stores.tiered_rows import DiskSettings


def run(folder, recipe, *overrides):
    """Trains from the last checkpoint, or the start, to the end; what the run reports."""
    # Segments so small that a small run fills, collects and deletes many.
    tiered.DiskSettings = partial(DiskSettings, segment_bytes=24_000)
    return outcome(trained(recipe, folder / "run", *overrides))
