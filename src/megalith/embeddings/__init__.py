"""Embedding tables that update themselves in the backward pass, and the optimizers that do it."""
