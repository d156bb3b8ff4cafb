"""The operators of `megalith.ops` as backends: native ones, and their twins in plain torch."""
