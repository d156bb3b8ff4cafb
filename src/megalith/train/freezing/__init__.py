"""Freezing a trained run: opens it, hands `megalith.export` what it needs, and writes the folder of a model."""
