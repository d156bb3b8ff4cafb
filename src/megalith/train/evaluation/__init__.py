"""Scores of a model: on the batches that it trains on, and on a whole split."""
