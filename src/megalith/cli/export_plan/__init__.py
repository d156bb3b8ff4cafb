"""`megalith export MODEL --hardware NAME`: a model cut over a host's cards, and what serving it will cost."""
