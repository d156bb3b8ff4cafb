"""The primitives of `GraphBuilder` in numpy: a value is a number in a list of steps."""

import numpy as np
import torch

from megalith.export.backends.graphs.lowering import GraphBuilder


class NumpyGraph(GraphBuilder):
    """Steps that are run one after the other."""

    def __init__(self):
        self._inputs, self._outputs, self._steps = {}, {}, []

    def run(self, given):
        values = []
        for function, reads in self._steps:
            values.append(function(given) if reads is None else function(*(values[n] for n in reads)))
        return {name: values[number][:, 0] for name, number in self._outputs.items()}

    def _step(self, function, *reads):
        self._steps.append((function, reads))
        return len(self._steps) - 1

    def input(self, name, columns):
        self._steps.append((lambda given: given[name], None))
        return len(self._steps) - 1

    def output(self, name, value):
        self._outputs[name] = value

    def constant(self, numbers):
        return self._step(lambda: numbers)

    def linear(self, x, weight, bias):
        return self._step(lambda x: x @ weight.T + (0 if bias is None else bias), x)

    def integer_linear(self, x, weights):
        return self._step(lambda x: _integer_linear(x, weights), x)

    def rounded_to_bfloat16(self, x):
        return self._step(lambda x: torch.from_numpy(x).bfloat16().float().numpy(), x)

    def function(self, name, x):
        return self._step(getattr(np, name) if hasattr(np, name) else globals()[f"_{name}"], x)

    def add(self, x, y):
        return self._step(np.add, x, y)

    def multiply(self, x, y):
        return self._step(np.multiply, x, y)

    def inverse_root(self, x):
        return self._step(lambda x: 1 / np.sqrt(x), x)

    def concat(self, values):
        return self._step(lambda *parts: np.concatenate(parts, 1), *values)

    def columns(self, x, first, last):
        return self._step(lambda x: x[:, first:last], x)

    def reduce(self, kind, x, axis=1):
        return self._step(lambda x: getattr(np, kind)(x, axis, keepdims=True), x)

    def rows_of(self, x, columns):
        return self._step(lambda x: x.reshape(-1, columns), x)

    def vectors(self, x, count, dim):
        return self._step(lambda x: x.reshape(-1, count, dim), x)

    def pair_products(self, vectors, count):
        rows, columns = np.tril_indices(count, -1)
        return self._step(lambda x: (x @ x.transpose(0, 2, 1))[:, rows, columns], vectors)

    def squeezed(self, x):
        return self._step(lambda x: x[:, 0], x)


def _integer_linear(x, weights):
    """Every sample by its own scale; products of bytes, exact."""
    low, high = x.min(1, initial=0, keepdims=True), x.max(1, initial=0, keepdims=True)
    scale = high / np.float32(255) - low / np.float32(255)
    usable = scale >= np.float32(2.0**-126)
    scale = np.where(usable, scale, np.float32(0))
    inverse = np.where(usable, np.float32(1) / scale, np.float32(0))
    zero = np.clip(np.rint(-low * inverse), 0, 255)
    codes = np.clip(np.rint(x * inverse) + zero, 0, 255)
    exact = codes.astype(np.float64) @ weights.codes.T.astype(np.float64) - zero * weights.code_sums
    y = exact.astype(np.float32) * (scale * weights.scales)
    return y if weights.bias is None else y + weights.bias


def _relu(x):
    return np.maximum(x, 0)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _silu(x):
    return x * _sigmoid(x)


def _gelu(x):
    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
