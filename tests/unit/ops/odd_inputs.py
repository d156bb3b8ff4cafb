"""Inputs that the registered operators must refuse; run by test_odd_inputs.py in a process of its own.

Each case is a good call with one thing changed.
"""

import copy
import json
import sys

import child_process
import torch

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import CollectionLookups
from megalith.ops.embedding import operators
from megalith.ops.embedding.descriptors import LookupDescriptor
from megalith.ops.interaction import dot
from megalith.ops.optimizer import backward
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep

FAR = 1 << 40
TABLES = [
    TableSpec(name="a", rows=50, dim=8, features=("f", "g")),
    TableSpec(name="b", rows=30, dim=5, features=("g",), pooling="mean"),
    TableSpec(name="c", rows=20, dim=3, features=("f",), pooling="none"),
]
BATCH = 4


class Call:
    """The arguments of one good call, by name and in order."""

    def __init__(self, operator):
        lookups = CollectionLookups(TABLES)
        draw = torch.Generator().manual_seed(0)
        self.operator = operator
        lookup = {
            "values": torch.randint(0, 20, (24,), generator=draw),
            "offsets": torch.arange(0, 25, 3),
            "sample_weights": torch.rand(24, generator=draw),
            "num_features": 2,
        }
        weights = [torch.randn(table.rows, table.dim, generator=draw) for table in TABLES]
        states = [torch.rand(table.rows, table.dim, generator=draw) for table in TABLES]
        step = OptimizerStep(kind=OPTIMIZER_KINDS.index("adam"), lr=0.1, eps=1e-3, beta1=0.9, beta2=0.99)
        gradient = torch.randn(BATCH, lookups.output_dim, generator=draw)
        pooled = {"weights": weights, "descriptors": lookups.pooled_descriptors.clone(), **lookup}
        every = {"descriptors": lookups.descriptors.clone(), **lookup}
        vectors = {
            "first": torch.randn(BATCH, 8, generator=draw),
            "rest": torch.randn(BATCH, 24, generator=draw),
            "dim": 8,
        }
        self.arguments = {
            "embedding_forward": pooled | {"output_dim": lookups.output_dim, "dtype": torch.float32},
            "embedding_sequence": {"weights": weights}
            | every
            | {"number": 3, "dim": 3, "dtype": torch.float32},
            "embedding_backward_": {"weights": weights, "first": states, "second": copy.deepcopy(states)}
            | {"steps": torch.tensor([step] * 3)}
            | every
            | {"gradient": gradient, "sequence_gradients": [torch.randn(12, 3, generator=draw)]}
            | {"rounding": torch.zeros(3, 3, dtype=torch.int64)},
            "sample_weight_gradient": pooled | {"gradient": gradient},
            "dot_interaction": vectors,
            "dot_interaction_backward": {"gradient": torch.randn(BATCH, 8 + 6, generator=draw)} | vectors,
        }[operator]

    def __getitem__(self, name):
        return self.arguments[name]

    def __setitem__(self, name, value):
        self.arguments[name] = value

    def field(self, number, name, value):
        self["descriptors"][number, LookupDescriptor._fields.index(name)] = value

    def run(self):
        (home,) = (module for module in (operators, backward, dot) if hasattr(module, self.operator))
        return getattr(home, self.operator)(*self.arguments.values())

    def tables(self):
        return [one for name in ("weights", "first", "second") for one in self.arguments.get(name, ())]


def on(operators, name, change):
    for operator in operators.split():
        yield f"{operator}: {name}", (operator, change)


def put(name, value):
    return lambda call: call.__setitem__(name, value(call) if callable(value) else value)


def item(name, position, value):
    return lambda call: call[name].__setitem__(position, value(call[name][position]))


def field(number, name, value):
    return lambda call: call.field(number, name, value)


def gapped(tensor):
    """The same numbers with gaps between them."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def emptied(tensor):
    """A tensor whose memory was given back, as sharded trainers do."""
    tensor.untyped_storage().resize_(0)
    return tensor


LOOKUPS = "embedding_forward embedding_sequence embedding_backward_ sample_weight_gradient"
POOLED = "embedding_forward sample_weight_gradient"
CASES = dict(
    [
        # Types.
        *on(LOOKUPS, "weights of another type", item("weights", 0, lambda one: one.double())),
        *on(
            LOOKUPS,
            "weights of another type than the descriptor says",
            item("weights", 0, lambda one: one.half()),
        ),
        *on(LOOKUPS, "float values", put("values", lambda call: call["values"].float())),
        *on(LOOKUPS, "int16 values", put("values", lambda call: call["values"].short())),
        *on(LOOKUPS, "int32 offsets", put("offsets", lambda call: call["offsets"].int())),
        *on(LOOKUPS, "int32 descriptors", put("descriptors", lambda call: call["descriptors"].int())),
        *on(LOOKUPS, "float64 sample weights", put("sample_weights", lambda c: c["sample_weights"].double())),
        *on("embedding_forward embedding_sequence", "an output of integers", put("dtype", torch.int32)),
        *on("embedding_backward_", "float64 steps", put("steps", lambda call: call["steps"].double())),
        *on("embedding_backward_", "int32 rounding", put("rounding", lambda call: call["rounding"].int())),
        *on(
            "embedding_backward_",
            "rounding of fewer tables",
            put("rounding", lambda call: call["rounding"][:2]),
        ),
        *on("embedding_backward_", "float16 state", item("first", 0, lambda one: one.half())),
        *on(
            "embedding_backward_ sample_weight_gradient",
            "a complex gradient",
            put("gradient", lambda call: call["gradient"].to(torch.complex64)),
        ),
        # Memory.
        *on(LOOKUPS, "weights with gaps", item("weights", 0, gapped)),
        *on(LOOKUPS, "weights without memory", item("weights", 0, emptied)),
        *on(LOOKUPS, "values without memory", put("values", lambda call: emptied(call["values"]))),
        *on("embedding_backward_", "state with gaps", item("second", 1, gapped)),
        *on(LOOKUPS, "values without a device", put("values", lambda call: call["values"].to("meta"))),
        *on(LOOKUPS, "weights without a device", item("weights", 0, lambda one: one.to("meta"))),
        *on(
            "embedding_backward_",
            "a table and a state in one tensor",
            lambda call: call["second"].__setitem__(0, call["first"][0]),
        ),
        *on(
            "embedding_backward_",
            "tables that overlap",
            lambda call: call["weights"].__setitem__(1, call["first"][0].view(-1)[3:153].view(30, 5)),
        ),
        # Shapes.
        *on(LOOKUPS, "flat weights", item("weights", 0, lambda one: one.view(-1))),
        *on(LOOKUPS, "fewer rows than the descriptor says", item("weights", 0, lambda one: one[:10].clone())),
        *on(
            LOOKUPS,
            "fewer columns than the descriptor says",
            item("weights", 0, lambda one: one[:, :2].clone()),
        ),
        *on(LOOKUPS, "a table of no columns", item("weights", 0, lambda one: one[:, :0].clone())),
        *on(LOOKUPS, "values in two dimensions", put("values", lambda call: call["values"].view(4, 6))),
        *on(
            LOOKUPS,
            "descriptors in one dimension",
            put("descriptors", lambda call: call["descriptors"].view(-1)),
        ),
        *on(
            LOOKUPS,
            "descriptors of too few fields",
            put("descriptors", lambda call: call["descriptors"][:, :5].clone()),
        ),
        *on(LOOKUPS, "too few sample weights", put("sample_weights", torch.ones(3))),
        *on(LOOKUPS, "no offsets at all", put("offsets", torch.zeros(0, dtype=torch.int64))),
        *on(LOOKUPS, "offsets of half a batch", put("offsets", torch.arange(0, 24, 3))),
        *on(LOOKUPS, "offsets in two dimensions", put("offsets", torch.arange(0, 24).view(2, 12))),
        *on(LOOKUPS, "no features", put("num_features", 0)),
        *on(LOOKUPS, "features below zero", put("num_features", -2)),
        *on(LOOKUPS, "no values", put("values", torch.zeros(0, dtype=torch.int64))),
        *on(LOOKUPS, "no tables", put("weights", [])),
        # Ranges.
        *on(
            LOOKUPS,
            "an id too large",
            put("values", lambda call: call["values"].index_fill(0, torch.tensor(3), FAR)),
        ),
        *on(
            LOOKUPS,
            "an id below zero",
            put("values", lambda call: call["values"].index_fill(0, torch.tensor(3), -FAR)),
        ),
        *on(LOOKUPS, "offsets too large", put("offsets", lambda call: call["offsets"] * FAR)),
        *on(LOOKUPS, "offsets below zero", put("offsets", lambda call: call["offsets"] - FAR)),
        *on(LOOKUPS, "offsets that fall", put("offsets", lambda call: call["offsets"].flip(0))),
        *on(LOOKUPS, "a table that is not there", field(0, "table", 1 << 30)),
        *on(LOOKUPS, "a table below zero", field(0, "table", -(1 << 30))),
        *on(LOOKUPS, "a feature that is not there", field(0, "feature", 1 << 30)),
        *on(LOOKUPS, "a feature below zero", field(0, "feature", -(1 << 30))),
        *on(LOOKUPS, "more rows than there are", field(0, "rows", FAR)),
        *on(LOOKUPS, "more columns than there are", field(0, "dim", 1 << 20)),
        *on(LOOKUPS, "an unknown pooling", field(0, "pooling", 9)),
        *on(LOOKUPS, "an unknown type", field(0, "dtype", 7)),
        *on(POOLED + " embedding_backward_", "columns too far", field(0, "column", 1 << 30)),
        *on(POOLED + " embedding_backward_", "columns below zero", field(0, "column", -(1 << 30))),
        *on("embedding_forward", "a lookup that does not pool", field(0, "pooling", 3)),
        *on("embedding_forward", "an output of fewer columns", put("output_dim", 3)),
        *on("embedding_forward", "an output of more columns", put("output_dim", 300)),
        *on("embedding_forward", "an output below zero", put("output_dim", -3)),
        *on("embedding_sequence", "a lookup that is not there", put("number", 100)),
        *on("embedding_sequence", "a lookup below zero", put("number", -9)),
        *on("embedding_sequence", "a lookup that pools", put("number", 0)),
        *on("embedding_sequence", "fewer columns", put("dim", 1)),
        *on("embedding_sequence", "more columns", put("dim", 300)),
        *on("embedding_backward_", "a sequence that is not there", field(3, "sequence", 1 << 30)),
        *on("embedding_backward_", "a sequence below zero", field(3, "sequence", -(1 << 30))),
        # What an update needs.
        *on("embedding_backward_", "fewer first states", put("first", lambda call: call["first"][:1])),
        *on("embedding_backward_", "no second states", put("second", [])),
        *on(
            "embedding_backward_", "a state of too few numbers", item("first", 0, lambda one: one[:2].clone())
        ),
        *on("embedding_backward_", "an empty state", item("second", 0, lambda one: one[:0].clone())),
        *on("embedding_backward_", "fewer steps", put("steps", lambda call: call["steps"][:1])),
        *on("embedding_backward_", "steps of fewer fields", put("steps", lambda call: call["steps"][:, :3])),
        *on("embedding_backward_", "steps in one dimension", put("steps", lambda call: call["steps"][0])),
        *on("embedding_backward_", "an unknown optimizer", lambda call: call["steps"].fill_(99.0)),
        *on("embedding_backward_", "an optimizer below zero", lambda call: call["steps"].fill_(-1.0)),
        *on("embedding_backward_", "no sequence gradients", put("sequence_gradients", [])),
        *on(
            "embedding_backward_", "a short sequence gradient", put("sequence_gradients", [torch.zeros(1, 3)])
        ),
        *on(
            "embedding_backward_",
            "a narrow sequence gradient",
            put("sequence_gradients", [torch.zeros(12, 1)]),
        ),
        *on(
            "embedding_backward_ sample_weight_gradient",
            "a gradient of fewer samples",
            put("gradient", lambda call: call["gradient"][:1]),
        ),
        *on(
            "embedding_backward_ sample_weight_gradient",
            "a gradient of fewer columns",
            put("gradient", lambda call: call["gradient"][:, :2]),
        ),
        *on("embedding_backward_ sample_weight_gradient", "a flat gradient", put("gradient", torch.zeros(9))),
        *on(
            "embedding_backward_",
            "ids in the memory of a table",
            put("values", lambda call: call["weights"][1].view(torch.int32).view(-1)[:24].zero_()),
        ),
        # The interaction.
        *on("dot_interaction dot_interaction_backward", "no dim", put("dim", 0)),
        *on("dot_interaction dot_interaction_backward", "a dim below zero", put("dim", -8)),
        *on("dot_interaction dot_interaction_backward", "a dim that does not divide", put("dim", 7)),
        *on("dot_interaction dot_interaction_backward", "a flat rest", put("rest", torch.zeros(96))),
        *on(
            "dot_interaction dot_interaction_backward",
            "fewer samples in front",
            put("first", torch.zeros(1, 8)),
        ),
        *on(
            "dot_interaction dot_interaction_backward",
            "fewer columns in front",
            put("first", torch.zeros(4, 2)),
        ),
        *on("dot_interaction dot_interaction_backward", "a flat front", put("first", torch.zeros(32))),
        *on("dot_interaction dot_interaction_backward", "an empty front", put("first", torch.zeros(0))),
        *on(
            "dot_interaction dot_interaction_backward",
            "integers",
            put("rest", torch.zeros(4, 24, dtype=torch.int64)),
        ),
        *on(
            "dot_interaction dot_interaction_backward",
            "no device",
            put("rest", torch.zeros(4, 24, device="meta")),
        ),
        *on("dot_interaction dot_interaction_backward", "no memory", lambda call: emptied(call["rest"])),
        *on("dot_interaction_backward", "a gradient of fewer samples", put("gradient", torch.zeros(1, 14))),
        *on("dot_interaction_backward", "a gradient of fewer columns", put("gradient", torch.zeros(4, 2))),
        *on("dot_interaction_backward", "a flat gradient", put("gradient", torch.zeros(56))),
    ]
)

# Odd, but clear: only read, and copied where the core wants them in one piece.
TAKEN = {
    name: case
    for name in ("descriptors", "values", "offsets", "sample_weights")
    for name, case in on(LOOKUPS, f"{name} with gaps", put(name, lambda call, name=name: gapped(call[name])))
}
TAKEN |= on("embedding_backward_", "steps with gaps", put("steps", lambda call: gapped(call["steps"])))
TAKEN |= on("dot_interaction", "vectors with gaps", put("rest", lambda call: gapped(call["rest"])))
TAKEN |= on(
    "embedding_backward_ sample_weight_gradient dot_interaction_backward",
    "a gradient with gaps",
    put("gradient", lambda call: gapped(call["gradient"])),
)


def outcome_of(operator, change):
    call = Call(operator)
    change(call)
    held = [one for one in call.tables() if one.device.type == "cpu" and one.untyped_storage().nbytes()]
    before = [one.clone() for one in held]
    try:
        call.run()
    except Exception as error:
        told = {"error": type(error).__name__, "sentence": str(error)}
    else:
        told = {"error": None}
    return {**told, "unchanged": all(map(torch.equal, held, before))}


def exact(operator, change):
    expected, found = Call(operator), Call(operator)
    change(found)
    results = []
    for call in (expected, found):
        out = call.run()
        outputs = [] if out is None else [out] if isinstance(out, torch.Tensor) else list(out)
        results.append([*outputs, *call.tables()])
    return {"exact": all(map(torch.equal, *results))}


def main():
    for name in json.loads(sys.argv[1]):
        child_process.begin(name)
        if name in CASES:
            child_process.tell(name, **outcome_of(*CASES[name]))
        else:
            child_process.tell(name, **exact(*TAKEN[name]))


if __name__ == "__main__":
    main()
