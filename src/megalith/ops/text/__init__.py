"""Text to columns, keys to counts and ids, on numpy arrays, without torch; `csrc/text` is the native side."""
