"""Dense programs against the plain-torch twin: any operations in any order, on every processor variant."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.ops.dense.functions_twin import FUNCTIONS
from megalith.ops.dense.layout import lay_out
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput
from megalith.ops.dense.program import DenseProgram
from megalith.ops.dense.program_twin import run_program_twin
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd

EXACT = ("linear", "activation", "concat", "columns", "add", "multiply", "multiply_add", "affine")
"""Operations whose every step is rounded alike by torch, with layers of reduced precision."""
ROUNDED = ("layer_norm", "sum_columns", "dot_interaction", "pair_sum")
REDUCED = ("bfloat16", "u8s7", "u8s8")


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


class Drawn:
    """A program in the making: values with their columns."""

    def __init__(self, draw, precisions):
        self.draw, self.precisions = draw, precisions
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        self.columns = {"dense": draw(st.integers(1, 20)), "embedded": 4 * draw(st.integers(1, 12))}
        self.inputs = dict(self.columns)
        self.operations = []

    def value(self, columns=None):
        fits = [name for name, own in self.columns.items() if columns is None or own in (1, columns)]
        return self.draw(st.sampled_from(fits))

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def add(self, kind):
        fields, name = {}, self.value()
        inputs, columns = (name,), self.columns[name]
        if kind == "linear":
            groups = self.draw(st.sampled_from([one for one in (1, 2, 3) if columns % one == 0]))
            made, within = self.draw(st.integers(1, 40)), columns // groups
            fields = {
                "weight": self.randn(made, within) / within**0.5,
                "bias": self.randn(made) if self.draw(st.booleans()) else None,
                "function": self.draw(st.sampled_from(FUNCTIONS)),
                "precision": self.draw(st.sampled_from(self.precisions)),
                "groups": groups,
            }
            columns = made * groups
        elif kind == "activation":
            fields = {"function": self.draw(st.sampled_from(FUNCTIONS))}
        elif kind == "concat":
            inputs = tuple(self.value() for _ in range(self.draw(st.integers(1, 4))))
            columns = sum(self.columns[one] for one in inputs)
        elif kind == "columns":
            first = self.draw(st.integers(0, columns - 1))
            last = self.draw(st.integers(first + 1, columns))
            fields, columns = {"first": first, "last": last}, last - first
        elif kind in ("add", "multiply", "multiply_add"):
            count = {"add": self.draw(st.integers(2, 4)), "multiply": 2, "multiply_add": 3}[kind]
            others = tuple(self.value(columns) for _ in range(count - 1))
            inputs = (*others, name) if self.draw(st.booleans()) else (name, *others)
        elif kind == "affine":
            fields = {"weight": self.randn(columns) if self.draw(st.booleans()) else 0.5, "bias": -0.25}
        elif kind == "layer_norm":
            fields = {"weight": self.randn(columns), "bias": None, "eps": 1e-3}
        elif kind == "sum_columns":
            columns = 1
        elif kind == "pair_sum":
            fields, columns = {"dim": next(one for one in (4, 3, 1) if columns % one == 0)}, 1
        elif kind == "dot_interaction":
            # Vectors of the input that is whole ones; the first of them may stand apart.
            inputs, columns, dim = ("embedded",), self.columns["embedded"], 4
            firsts = [one for one, own in self.columns.items() if own == dim]
            if firsts and self.draw(st.booleans()):
                inputs, columns = (self.draw(st.sampled_from(firsts)), "embedded"), columns + dim
            count = columns // dim
            fields = {"dim": dim}
            columns = count * (count - 1) // 2 + (dim if len(inputs) == 2 else 0)
        if 0 < columns < 400:
            output = f"v{len(self.operations)}"
            self.operations.append(DenseOperation(kind, inputs, output, **fields))
            self.columns[output] = columns


@st.composite
def programs(draw, kinds, precisions):
    drawn = Drawn(draw, precisions)
    for _ in range(draw(st.integers(1, 10))):
        drawn.add(draw(st.sampled_from(kinds)))
    outputs = tuple(DenseOutput(drawn.value(), draw(st.booleans())) for _ in range(draw(st.integers(1, 3))))
    description = DenseDescription(drawn.inputs, tuple(drawn.operations), outputs)
    batch = draw(st.sampled_from([0, 1, 2, 17, 70]))
    return description, [drawn.randn(batch, columns) for columns in drawn.inputs.values()]


def expected_of(description, inputs):
    return run_program_twin(description, dict(zip(description.inputs, inputs, strict=True)))


@given(programs(EXACT, REDUCED), st.sampled_from(SIMD_LEVELS), st.integers(1, 3))
@settings(deadline=None, max_examples=250)
def test_programs_of_exact_operations_give_the_twins_bits(case, level, threads):
    description, inputs = case
    use_simd(level)
    found = DenseProgram(description, threads).run(*inputs)
    torch.testing.assert_close(found, expected_of(description, inputs), rtol=0, atol=0, equal_nan=True)


@given(programs((*EXACT, *ROUNDED), ("float32",)), st.sampled_from(SIMD_LEVELS))
@settings(deadline=None, max_examples=250)
def test_programs_match_the_twin(case, level):
    """Products of products may cancel, so that what is compared is relative to the largest output."""
    description, inputs = case
    use_simd(level)
    found, expected = DenseProgram(description).run(*inputs), expected_of(description, inputs)
    usable = expected.isfinite()
    size = float(expected[usable].abs().max()) if usable.any() else 0.0
    torch.testing.assert_close(found[usable], expected[usable], rtol=2e-3, atol=1e-4 * (1 + size))


@given(programs((*EXACT, *ROUNDED), ("float32", *REDUCED)))
@settings(deadline=None, max_examples=100)
def test_programs_give_the_same_bits_in_any_batch_and_on_any_variant(case):
    description, inputs = case
    program = DenseProgram(description)
    together = program.run(*inputs)
    for number in range(min(3, len(together))):
        alone = program.run(*(one[number : number + 1] for one in inputs))
        torch.testing.assert_close(alone, together[number : number + 1], rtol=0, atol=0, equal_nan=True)
    use_simd("avx2")
    on_avx2 = program.run(*inputs)
    use_simd("avx512")
    torch.testing.assert_close(program.run(*inputs), on_avx2, rtol=0, atol=0, equal_nan=True)


def cross_network(precision="float32", columns=200, rank=24, depth=3):
    """Bottom layers, low-rank cross layers, top layers: every kind of buffer."""
    generator = torch.Generator().manual_seed(3)

    def layer(source, output, made, taken, function="relu"):
        weight = torch.randn(made, taken, generator=generator) / taken**0.5
        bias = torch.randn(made, generator=generator)
        return DenseOperation("linear", (source,), output, weight, bias, function, precision=precision)

    operations = [layer("dense", "bottom", 40, 13)]
    operations.append(DenseOperation("concat", ("bottom", "embedded"), "x0"))
    last = "x0"
    for number in range(depth):
        operations.append(layer(last, f"v{number}", rank, columns, "none"))
        operations.append(layer(f"v{number}", f"u{number}", columns, rank, "none"))
        operations.append(DenseOperation("multiply_add", ("x0", f"u{number}", last), f"x{number + 1}"))
        last = f"x{number + 1}"
    operations += [layer(last, "top", 64, columns), layer("top", "logit", 1, 64, "none")]
    description = DenseDescription(
        {"dense": 13, "embedded": columns - 40}, tuple(operations), (DenseOutput("logit"),)
    )
    return description, [
        torch.randn(700, 13, generator=generator),
        torch.randn(700, columns - 40, generator=generator),
    ]


@pytest.mark.parametrize("precision", ["float32", *REDUCED])
def test_a_batch_of_700_gives_the_bits_of_700_batches_of_one(precision):
    description, inputs = cross_network(precision)
    program = DenseProgram(description, threads=2)
    together = program.run(*inputs)
    alone = torch.cat([program.run(*(one[i : i + 1] for one in inputs)) for i in range(700)])
    assert torch.equal(together, alone)
    assert torch.equal(DenseProgram(description, threads=1).run(*inputs), together)


def test_threads_may_run_one_program_at_once():
    description, inputs = cross_network()
    program = DenseProgram(description)
    expected = program.run(*inputs)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: program.run(*inputs), range(12)))
    assert all(torch.equal(one, expected) for one in found)


def test_parts_of_a_concatenation_are_made_in_their_place():
    description, _ = cross_network()
    layout = lay_out(description)
    assert layout.values["bottom"].buffer == layout.values["x0"].buffer
    # x0 and two values of the cross layers live at once, and their buffers are used in turn.
    assert layout.floats < 4 * 224


def test_inputs_may_have_gaps_and_results_a_place():
    description, (dense, embedded) = cross_network()
    program = DenseProgram(description)
    expected = program.run(dense, embedded)
    wide = torch.cat([embedded, dense], 1)
    out = torch.empty(700, 1)
    assert program.run(wide[:, -13:], wide[:, :-13], out=out) is out
    assert torch.equal(out, expected)
    assert torch.equal(program.run(dense.T.contiguous().T, embedded), expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(2, 13),), "pass 2 tensors"),
        ((torch.zeros(2, 12), torch.zeros(2, 160)), "12 columns; pass 13"),
        ((torch.zeros(2, 13), torch.zeros(3, 160)), "as many of each"),
        ((torch.zeros(2, 13, dtype=torch.float64), torch.zeros(2, 160)), "pass float32"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    with pytest.raises(ConfigError, match=message):
        DenseProgram(cross_network()[0]).run(*inputs)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (DenseOperation("linear", ("x",), "y", torch.zeros(2, 5)), "takes 1 x 5 columns but reads 6"),
        (DenseOperation("linear", ("x",), "y"), r"no weight \[out, in\]"),
        (DenseOperation("linear", ("x",), "y", torch.zeros(2, 6), torch.zeros(3)), r"bias that is not \[2\]"),
        (DenseOperation("columns", ("x",), "y", first=2, last=7), "beyond the 6"),
        (DenseOperation("multiply", ("x",), "y"), "has 1 inputs"),
        (DenseOperation("dot_interaction", ("x",), "y", dim=4), "not vectors of 4"),
        (DenseOperation("affine", ("x",), "y", torch.zeros(5)), r"weight that is not \[6\]"),
        (DenseOperation("activation", ("z",), "y"), "'z', which none before it makes"),
        (DenseOperation("activation", ("x",), "x"), "'x' a second time"),
    ],
)
def test_operations_that_do_not_fit_are_refused(operation, message):
    with pytest.raises(ConfigError, match=message):
        DenseDescription({"x": 6}, (operation,), (DenseOutput("y"),))
