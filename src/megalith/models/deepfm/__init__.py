"""DeepFM (arXiv 1703.04247)."""
