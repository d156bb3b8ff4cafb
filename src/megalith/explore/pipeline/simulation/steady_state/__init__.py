"""Skips what repeats in a long step, with exactly the result of running all of it."""
