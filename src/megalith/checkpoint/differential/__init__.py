"""Differential checkpoints: a baseline, then only what changed, quantised if asked for."""
