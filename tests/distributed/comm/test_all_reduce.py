"""All-reduces between real processes: the same sum on every rank, at once or bucket by bucket."""

import torch
from contexts import SHARED, in_context, with_separate
from processes import on_ranks


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


SUMS = ([54.0, 108.0, 162.0], [6.0, 6.0])


@SHARED
def test_an_all_reduce_gives_every_rank_the_same_sum(shared):
    assert on_ranks(3, in_context, shared, sums) == [SUMS] * 3


def test_ranks_that_do_not_all_share_memory_use_the_collective():
    assert on_ranks(3, with_separate, (1,), sums) == [SUMS] * 3


def order_of_sums(context):
    """Numbers whose sum depends on the order in which they are added."""
    tensor = torch.tensor([1.0, 2.0**24, -(2.0**24)][context.rank : context.rank + 1])
    context.all_reduce().add_(tensor)
    return tensor.item()


def test_shared_memory_adds_in_the_order_of_ranks():
    first = torch.tensor(1.0) + torch.tensor(2.0**24)
    assert on_ranks(3, in_context, "1", order_of_sums) == [(first - 2.0**24).item()] * 3
