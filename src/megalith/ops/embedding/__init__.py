"""Lookup of embedding rows over many tables in one call; `csrc/embedding` is the native side."""
