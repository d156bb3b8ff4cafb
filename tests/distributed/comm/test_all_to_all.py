"""All-to-alls between real processes: what each rank wrote for another arrives there, and is counted."""

from contexts import SHARED, in_context, with_separate
from processes import on_ranks


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
        right.append([message.tolist() for message in arrived] == expected)
    return all(right), context.traffic.sent_bytes["things"], context.traffic.calls["things"]


SENT_BYTES = [
    sum((rank + other + turn) % 4 for turn in range(9) for other in range(3) if other != rank)
    for rank in range(3)
]


@SHARED
def test_an_all_to_all_brings_each_rank_what_was_written_for_it(shared):
    exchanged = on_ranks(3, in_context, shared, exchange, 9)
    assert exchanged == [(True, num_bytes, 9) for num_bytes in SENT_BYTES]


def test_hosts_may_have_one_rank_and_several():
    exchanged = on_ranks(3, with_separate, (2,), exchange, 9)
    assert exchanged == [(True, num_bytes, 9) for num_bytes in SENT_BYTES]


def exchange_out_of_order(context):
    """What overlaps uses branches: the later one is waited for first."""
    early, late = context.all_to_all("early"), context.branch().all_to_all("late")
    pending = []
    for number, all_to_all in enumerate((early, late)):
        all_to_all.buffers([4, 4])[1 - context.rank].fill_(number)
        pending.append(all_to_all.start([4, 4]))
    second = late.wait(pending[1])[1 - context.rank].tolist()
    return early.wait(pending[0])[1 - context.rank].tolist(), second


@SHARED
def test_branches_of_a_context_keep_orders_of_their_own(shared):
    assert on_ranks(2, in_context, shared, exchange_out_of_order) == [([0] * 4, [1] * 4)] * 2


def read_late(context):
    """Of depth 2: a message may still be read after the next has been written."""
    all_to_all, other = context.all_to_all("things", depth=2), 1 - context.rank
    arrived = []
    for turn in range(2):
        all_to_all.buffers([4, 4])[other].fill_(turn)
        arrived.append(all_to_all.wait(all_to_all.start([4, 4]))[other])
    return [message.tolist() for message in arrived]


@SHARED
def test_messages_stay_readable_for_as_many_exchanges_as_the_depth(shared):
    assert on_ranks(2, in_context, shared, read_late) == [[[0] * 4, [1] * 4]] * 2
