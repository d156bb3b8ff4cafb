"""Ids of dynamic tables with their vectors, out of a run's checkpoint and into one; what came and went."""
