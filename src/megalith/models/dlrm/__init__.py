"""DLRM (arXiv 1906.00091)."""
