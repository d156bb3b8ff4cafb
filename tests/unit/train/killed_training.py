"""A run of the small recipe with tables on disk, to be killed anywhere: see killed_runs.py."""

from small_recipes import outcome, trained

from megalith.embeddings.stores import tiered
from megalith.embeddings.stores.adaptive.tiers import chunk_files


def run(folder, recipe, *overrides):
    """Trains from the last checkpoint, or the start, to the end; what the run reports."""
    # Segments so small that a small run fills, collects and deletes many.
    for stored in (tiered, chunk_files):
        stored.segment_bytes_for = lambda declared_bytes: 24_000
    return outcome(trained(recipe, folder / "run", *overrides))
