"""Freezing a trained run: opens it, and hands `megalith.export` what it needs to write a model."""
