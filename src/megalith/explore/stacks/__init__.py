"""Training software as data: what each stack reaches of the hardware, and how it trains.

profile.py   a profile, its constants, and the one that a job means
*.yaml       the profiles that ship with the package
"""

from __future__ import annotations

from megalith.explore.stacks.profile import (
    PRIORS,
    Stack,
    StackProfile,
    default_stack,
    load_stack,
    release_of,
    stack_names,
)

__all__ = ["PRIORS", "Stack", "StackProfile", "default_stack", "load_stack", "release_of", "stack_names"]
