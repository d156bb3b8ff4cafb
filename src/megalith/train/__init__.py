"""Training: a recipe in, a run directory out."""
