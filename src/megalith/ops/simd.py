"""Which vector instructions the kernels use: the widest there are, or fewer where a test wants them."""

from __future__ import annotations

from megalith.ops import native

_most: int | None = None


def use_simd(name: str | None) -> None:
    """Makes the kernels use at most these vector instructions; None goes back to the widest there are."""
    global _most
    _most = None if name is None else native.SIMD_LEVELS.index(name)


def simd_level() -> int:
    """The level that native kernels are called with."""
    widest: int = native.library().mg_simd_level()
    return widest if _most is None else min(widest, _most)
