"""Shared memory of an engine, and who has which part of it."""
