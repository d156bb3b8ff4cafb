"""Raw 64-bit ids to rows of bounded tables."""
