"""The run folder: what training leaves on disk, and what reads it back."""
