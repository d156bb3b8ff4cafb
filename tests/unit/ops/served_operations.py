"""Operations of served models whose allocations fail in allocation_failures.py: each made anew, then run."""

import torch

from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput
from megalith.ops.dense.program import DenseProgram
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.serving.score import ScoreProgram

BATCH, NUMBERS, DIM, ROWS = 100, 16, 16, 3000
FORM = RowFormat("int8", "float16")


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def tables():
    """Ids that are rows, and ids that are listed: many, in pages of their own, and few."""
    rows = encode_rows(draw(ROWS, DIM), FORM)
    few = encode_rows(draw(20, DIM), FORM)
    return [
        FrozenTable(rows, FORM, DIM, (0,), name="plain"),
        FrozenTable(rows, FORM, DIM, (1,), ids=torch.arange(ROWS) * 3, name="listed"),
        FrozenTable(few, FORM, DIM, (1,), ids=torch.arange(20) * 3, unknown=2, name="few"),
    ]


def bags():
    generator = torch.Generator().manual_seed(5)
    values = torch.randint(0, ROWS, (2 * BATCH * 30,), generator=generator)
    return values, torch.arange(0, len(values) + 1, 30)


def description():
    """Layers of every precision over numbers and vectors."""
    layers = [
        DenseOperation(
            "linear", ("dense",), "h", draw(DIM, NUMBERS), draw(DIM), "relu", precision="bfloat16"
        ),
        DenseOperation("dot_interaction", ("h", "embedded"), "pairs", dim=DIM),
        DenseOperation("linear", ("pairs",), "t", draw(200, DIM + 6), draw(200), "relu", precision="u8s7"),
        DenseOperation("layer_norm", ("t",), "n", draw(200), draw(200), eps=1e-3),
        DenseOperation("linear", ("n",), "y", draw(1, 200), draw(1)),
    ]
    return DenseDescription({"dense": NUMBERS, "embedded": 3 * DIM}, tuple(layers), (DenseOutput("y"),))


def encoding(_):
    weights = draw(500, 65)
    return [], lambda: [encode_rows(weights, RowFormat("int4", "float32"))]


def frozen_lookup(_):
    held, batch = tables(), bags()
    return [], lambda: [FrozenLookup(held, ["a", "b"])(*batch)]


def dense_program(_):
    described, inputs = description(), (draw(BATCH, NUMBERS), draw(BATCH, 3 * DIM))
    return [], lambda: [DenseProgram(described).run(*inputs)]


def whole_request(_):
    held, (values, offsets), described, dense = tables(), bags(), description(), draw(BATCH, NUMBERS)
    lengths = offsets.diff().to(torch.int32).view(2, BATCH)

    def run():
        lookup, program = FrozenLookup(held, ["a", "b"]), DenseProgram(described)
        score = ScoreProgram(lookup, program, ["numbers", "pooled"], NUMBERS)
        return [score.run(dense, values, lengths), score.run(dense, values, lengths)]

    return [], run


SERVED = {
    "encode_rows": (encoding, "adam"),
    "frozen lookup": (frozen_lookup, "adam"),
    "dense program": (dense_program, "adam"),
    "whole request": (whole_request, "adam"),
}
