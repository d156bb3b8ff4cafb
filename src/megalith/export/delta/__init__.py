"""Deltas of frozen models: what changed between two versions, and a version made of one and a delta."""

from megalith.export.delta.folder import write_delta

__all__ = ["write_delta"]
