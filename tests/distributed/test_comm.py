"""The parts of `comm`, each between real processes, with shared memory and without."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks

from megalith.comm.context import CommContext
from megalith.comm.process_group import rank_in, subgroup
from megalith.comm.ranks import Ranks
from megalith.comm.shared_buffer import SharedBuffer
from megalith.core.errors import DataError

SHARED = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "sockets"])


def in_context(shared, check, *given):
    """Runs a check with a context of all ranks."""
    os.environ["MEGALITH_SHARED_MEMORY"] = shared
    context = CommContext.of(None)
    assert context is not None
    assert context.peers.all_same_host == (shared == "1")
    return check(context, *given)


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
    seen["apart"] = own.group is not ranks.group and own.from_each(lambda: own.rank)
    return seen


def test_ranks_agree_on_values_and_on_errors():
    first, second = on_ranks(2, answers)
    assert first.pop("gathered") == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert second.pop("gathered") is None
    assert first == second
    assert first["first"] == "of 0"
    assert first["each"] == first["apart"] == [0, 1]
    assert first["from_first"] == first["from_each"] == "rank 0 met bad data"


def groups():
    rank, world_size, backend = rank_in(None)
    pair = subgroup(None, [0, 2] if rank != 1 else [1])
    inside = None if pair is None else rank_in(pair)[:2]
    return rank, world_size, backend, inside


def test_a_subgroup_counts_its_own_ranks():
    assert on_ranks(3, groups) == [(0, 3, "gloo", (0, 2)), (1, 3, "gloo", None), (2, 3, "gloo", (1, 2))]


def read_each_other(context):
    buffers = [SharedBuffer(), SharedBuffer()]
    theirs = context.peers.share(buffers, context.group)
    for number, buffer in enumerate(buffers):
        buffer.memory[:3] = torch.tensor([context.rank, number, 9], dtype=torch.uint8)
    dist.barrier(group=context.group)
    seen = [[memory[:3].tolist() for memory in some] for some in theirs]
    dist.barrier(group=context.group)
    return context.peers.same_host, seen


def test_ranks_of_a_host_read_each_others_buffers():
    first, second = on_ranks(2, in_context, "1", read_each_other)
    assert first == ([False, True], [[], [[1, 0, 9], [1, 1, 9]]])
    assert second == ([True, False], [[[0, 0, 9], [0, 1, 9]], []])


def signal_each_other(context):
    pipes, other = context._shared_pipes(), 1 - context.rank
    for word in (b"one", b"two"):
        pipes.send(other, word)
    return [pipes.receive(other, 3), pipes.receive(other, 3)]


def test_signals_arrive_in_order():
    assert on_ranks(2, in_context, "1", signal_each_other) == [[b"one", b"two"]] * 2


def exchange(context, rounds):
    """Rank r sends rank s, in round n, r + s + n bytes of the value 16 r + s; one rank may have nothing."""
    all_to_all = context.all_to_all("things", depth=2)
    ranks = range(context.world_size)
    right = []
    for turn in range(rounds):
        sizes = [(context.rank + other + turn) % 4 if other != context.rank else 0 for other in ranks]
        for other, buffer in enumerate(all_to_all.buffers(sizes)):
            buffer.fill_(16 * context.rank + other)
        arrived = all_to_all.wait(all_to_all.start(sizes))
        expected = [[16 * other + context.rank] * sizes[other] for other in ranks]
        right.append([one.tolist() for one in arrived] == expected)
    return all(right), context.traffic.sent_bytes["things"], context.traffic.calls["things"]


@SHARED
def test_an_all_to_all_brings_each_rank_what_was_written_for_it(shared):
    found = on_ranks(3, in_context, shared, exchange, 9)
    sent = [
        sum((rank + other + turn) % 4 for turn in range(9) for other in range(3) if other != rank)
        for rank in range(3)
    ]
    assert found == [(True, num_bytes, 9) for num_bytes in sent]


def exchange_out_of_order(context):
    """What overlaps uses branches: the later one is waited for first."""
    early, late = context.all_to_all("early"), context.branch().all_to_all("late")
    pending = []
    for number, one in enumerate((early, late)):
        one.buffers([4, 4])[1 - context.rank].fill_(number)
        pending.append(one.start([4, 4]))
    second = late.wait(pending[1])[1 - context.rank].tolist()
    return early.wait(pending[0])[1 - context.rank].tolist(), second


@SHARED
def test_branches_of_a_context_keep_orders_of_their_own(shared):
    assert on_ranks(2, in_context, shared, exchange_out_of_order) == [([0] * 4, [1] * 4)] * 2


def sums(context):
    all_reduce = context.all_reduce()
    tensor = torch.tensor([1.0, 2.0, 3.0]) * (1 + context.rank)
    for _ in range(3):
        all_reduce.add_(tensor)
    buckets = []

    def start(gradient):
        bucket = gradient.clone()
        buckets.append((bucket, all_reduce.start_bucket(1, bucket)))

    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.register_hook(start)
    (parameter * (1 + context.rank)).sum().backward()
    bucket, future = buckets[0]
    future.wait()
    return tensor.tolist(), bucket.tolist()


@SHARED
def test_an_all_reduce_gives_every_rank_the_same_sum(shared):
    assert on_ranks(3, in_context, shared, sums) == [([54.0, 108.0, 162.0], [6.0, 6.0])] * 3


def lose_a_peer(context, operation):
    """Rank 1 dies; what rank 0 is told."""
    all_to_all, all_reduce = context.all_to_all("things"), context.all_reduce()
    ranks = Ranks(context.group, context.rank, 2)
    ranks.from_each(lambda: None)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        if operation == "all_to_all":
            all_to_all.buffers([8, 8])
            all_to_all.wait(all_to_all.start([8, 8]))
        elif operation == "all_reduce":
            all_reduce.add_(torch.ones(3))
        else:
            ranks.from_each(lambda: None)


@SHARED
@pytest.mark.parametrize("operation", ["all_to_all", "all_reduce", "ranks"])
def test_a_lost_rank_is_a_typed_error(shared, operation):
    with pytest.raises(AssertionError) as error:
        on_ranks(2, in_context, shared, lose_a_peer, operation)
    assert "PeerLostError" in str(error.value)
    assert "rank 1 ended without a result" in str(error.value)
