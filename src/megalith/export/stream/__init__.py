"""Streams of model versions: what a trainer publishes, and servers follow without a restart."""
