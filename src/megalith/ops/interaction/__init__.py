"""The dot interaction of feature vectors; `csrc/interaction` is the native side."""
