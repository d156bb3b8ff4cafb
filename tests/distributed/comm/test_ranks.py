"""`Ranks` between real processes: they agree on values and on errors."""

import torch
from processes import on_ranks

from megalith.comm.ranks import Ranks
from megalith.core.errors import DataError


def answers():
    ranks = Ranks.all()
    seen = {
        "first": ranks.from_first(lambda: f"of {ranks.rank}"),
        "each": ranks.from_each(lambda: ranks.rank),
    }
    columns = torch.full((2, 3 - ranks.rank), float(ranks.rank))
    gathered = ranks.gather_columns(columns, [3, 2])
    seen["gathered"] = None if gathered is None else gathered[0].tolist()

    def fail():
        raise DataError(f"rank {ranks.rank} met bad data")

    for name, ask in (("from_first", ranks.from_first), ("from_each", ranks.from_each)):
        try:
            ask(fail)
        except DataError as error:
            seen[name] = str(error)
    own = ranks.with_own_group()
    seen["own group"] = own.group is not ranks.group and own.from_each(lambda: own.rank)
    return seen


def test_ranks_agree_on_values_and_on_errors():
    first, second = on_ranks(2, answers)
    assert first.pop("gathered") == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert second.pop("gathered") is None
    assert first == second
    assert first["first"] == "of 0"
    assert first["each"] == first["own group"] == [0, 1]
    assert first["from_first"] == first["from_each"] == "rank 0 met bad data"


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def raised_by_the_second():
    ranks = Ranks.all()

    def fail():
        if ranks.rank == 1:
            raise UnpicklableError("bad", "luck")

    try:
        ranks.from_each(fail)
    except RuntimeError as error:
        return str(error)
    return None


def test_an_error_that_cannot_be_pickled_arrives_as_its_text():
    assert on_ranks(2, raised_by_the_second) == ["UnpicklableError: bad luck"] * 2


def test_one_process_needs_no_group():
    alone = Ranks.all()
    assert (alone.rank, alone.world_size, alone.is_first) == (0, 1, True)
    assert alone.from_first(lambda: 3) == 3
    assert alone.from_each(lambda: 3) == [3]
    assert alone.with_own_group() is alone
    assert alone.gather_columns(torch.ones(1, 2), [2]).tolist() == [[1.0, 1.0]]
