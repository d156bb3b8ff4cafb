"""Pools of rows that stores fill: start values, and rows on disk under a cache in memory."""
