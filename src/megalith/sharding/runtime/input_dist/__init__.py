"""The input distribution: the ids of a batch on their way to the workers that hold their rows."""
