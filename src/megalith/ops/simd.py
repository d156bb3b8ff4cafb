"""Which vector instructions the kernels use: the widest there are, or fewer where a test wants them."""

from __future__ import annotations

from megalith.ops import native


def use_simd(name: str | None) -> None:
    """Makes all kernels use at most these vector instructions; None goes back to the widest there are."""
    level = len(native.SIMD_LEVELS) - 1 if name is None else native.SIMD_LEVELS.index(name)
    native.library().mg_use_simd_level(level)
