"""Blocks that several models are made of."""
