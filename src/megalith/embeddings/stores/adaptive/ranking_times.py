"""When chunks are ranked: every interval, and sooner after a table forgot.

What lives of a table that forgot is of ids that nothing looks up any more, and every step until the next
ranking is lost on it. So chunks are ranked 2, 4, 8, ... steps afterwards, until a whole interval has passed.
All ranks know when tables forgot, and checkpoints have it, so that all of them rank after the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_ranking(step: int, interval: int, forgot_at: Sequence[int]) -> bool:
    """Whether chunks are ranked after a step; `forgot_at` are the last steps after which tables forgot.

    >>> [step for step in range(101, 151) if is_ranking(step, 25, [105])]
    [107, 109, 113, 121, 125, 150]
    """
    return step % interval == 0 or any(_is_early(step - forgot, interval) for forgot in forgot_at)


def next_ranking(step: int, interval: int, forgot_at: Sequence[int]) -> int:
    """The first step behind this one after which chunks are ranked, if no table forgets until then.

    >>> [next_ranking(step, 25, [105]) for step in (105, 107, 121, 125)]
    [107, 109, 125, 150]
    """
    following = step + 1
    while not is_ranking(following, interval, forgot_at):
        following += 1
    return following


def _is_early(passed: int, interval: int) -> bool:
    return 2 <= passed < interval and passed & (passed - 1) == 0
