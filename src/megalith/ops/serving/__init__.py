"""Whole requests of a served model: checks, lookups and the dense part in one native call."""
