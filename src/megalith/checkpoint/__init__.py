"""Checkpoints: torch.distributed.checkpoint underneath; atomic, checked, and pruned on top."""
