"""What sharded lookups do to ids and vectors around an exchange; `csrc/sharding` is the native side."""
