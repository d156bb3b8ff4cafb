"""Chunked rows of which some are in memory and the others on disk."""
