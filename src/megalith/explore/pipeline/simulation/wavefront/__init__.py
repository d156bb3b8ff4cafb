"""Follows wide pipelines row by row: operations that do not wait for one another, at once."""
