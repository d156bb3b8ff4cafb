"""Wide & Deep (arXiv 1606.07792)."""
