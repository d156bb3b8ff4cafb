"""Columns put together: native against the plain twin."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.ops.sharding.copy_columns import copy_columns, copy_columns_twin


@st.composite
def matrices(draw):
    """Sources of any lookups, runs of any width, zero too, over one another where they are added."""
    rows = draw(st.sampled_from([0, 1, 5, 130]))
    widths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    sources = []
    for width in widths:
        lookups = draw(st.sampled_from(["plain", "wider", "turned", "repeated"]))
        if lookups == "wider":
            sources.append(torch.randn(rows, width + 3)[:, 1 : width + 1])
        elif lookups == "turned":
            sources.append(torch.randn(width, rows).t())
        elif lookups == "repeated":
            sources.append(torch.randn(1, width).expand(rows, width))
        else:
            sources.append(torch.randn(rows, width))
    columns = draw(st.integers(1, 60))
    runs = []
    for _ in range(draw(st.integers(0, 6))):
        source = draw(st.integers(0, len(widths) - 1))
        width = draw(st.integers(0, min(widths[source], columns)))
        column, output = draw(st.integers(0, widths[source] - width)), draw(st.integers(0, columns - width))
        runs.append((source, column, output, width))
    num_copied = draw(st.integers(0, len(runs)))
    wide = torch.randn(rows, columns + 2)
    return sources, torch.tensor(runs, dtype=torch.int64).view(-1, 4), num_copied, wide


@given(matrices())
def test_columns_come_to_lie_as_the_twin_puts_them(given):
    sources, runs, num_copied, wide = given
    found, expected = wide.clone(), wide.clone()
    copy_columns(sources, runs, num_copied, found[:, 1:-1])
    copy_columns_twin(sources, runs, num_copied, expected[:, 1:-1])
    assert torch.equal(found, expected)
