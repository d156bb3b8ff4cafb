"""Threads of torch and of the native core, which share one pool."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """Lets what this process runs next use so many; asking is cheap where that is so already."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
