"""Whether a plan works: every id reaches its row, every vector its sample, and memory suffices."""
