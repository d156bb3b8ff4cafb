"""Checkpoints: safetensors and JSON, seen whole or not at all, checked, and loaded on any number of ranks."""
