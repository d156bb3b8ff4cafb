"""Rows cut into chunks of which only the live ones are stored: the pool, and what kernels do with it."""
