"""What is done to recorded operations: terms that are one operation become it, layers take what follows them.

A value that only one operation reads may vanish into that operation. Each pass takes a list and returns one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from torch import Tensor

from megalith.export.program import (
    Activation,
    Add,
    Affine,
    Columns,
    Linear,
    Multiply,
    MultiplyAdd,
    Operation,
    PairSum,
    SumColumns,
)
from megalith.export.tracing.records import AnyRecord, Subtract, VectorSum

Records = list[AnyRecord]


class Tidy:
    """Operations of a recorder on their way to a program, with weights and the columns of values."""

    def __init__(
        self, operations: Records, weights: dict[str, Tensor], columns: dict[str, int], output: str
    ) -> None:
        self.operations, self.weights, self.columns, self.output = operations, weights, columns, output

    def run(self) -> tuple[Operation, ...]:
        """All passes, in the order that they need."""
        for each in (
            self._pair_sums,
            self._plain,
            self._folded_affines,
            self._functions,
            self._multiply_adds,
            self._long_sums,
        ):
            self._drop_unused()
            each()
        self._drop_unused()
        used = {name for operation in self.operations for name in _weights_of(operation)}
        self.weights = {name: tensor for name, tensor in self.weights.items() if name in used}
        return tuple(operation for operation in self.operations if not isinstance(operation, _STEPS))

    def _drop_unused(self) -> None:
        wanted, kept = {self.output}, []
        for operation in reversed(self.operations):
            if operation.output in wanted:
                wanted.update(operation.inputs)
                kept.append(operation)
        self.operations = kept[::-1]

    def _makers(self) -> dict[str, AnyRecord]:
        """By value, the operation that makes it, of those that one operation reads, once."""
        uses = Counter(name for operation in self.operations for name in operation.inputs)
        uses[self.output] += 1
        return {each.output: each for each in self.operations if uses[each.output] == 1}

    def _replace(self, found: Callable[[AnyRecord, dict[str, AnyRecord]], AnyRecord | None]) -> None:
        """Puts what `found` makes of an operation and those before it in its place, one after another."""
        done: Records = []
        for operation in self.operations:
            self.operations = [*done, operation, *self.operations[len(done) + 1 :]]
            done.append(found(operation, self._makers()) or operation)
        self.operations = done

    def _pair_sums(self) -> None:
        """0.5 * sum((sum of vectors)^2 - sum of vectors^2), as `models.layers.interaction` has it."""

        def found(operation: AnyRecord, makers: dict[str, AnyRecord]) -> AnyRecord | None:
            if not (isinstance(operation, Affine) and (operation.weight, operation.bias) == (0.5, 0.0)):
                return None
            total = makers.get(operation.inputs[0])
            difference = makers.get(total.inputs[0]) if isinstance(total, SumColumns) else None
            if not isinstance(difference, Subtract):
                return None
            squared, squares = (makers.get(name) for name in difference.inputs)
            if not (_is_square(squared) and isinstance(squares, VectorSum)):
                return None
            inner = makers.get(squares.inputs[0])
            # It reads the sum twice, as both factors.
            summed = next((each for each in self.operations if each.output == squared.inputs[0]), None)
            if not (_is_square(inner) and isinstance(summed, VectorSum)):
                return None
            if inner.inputs[0] != summed.inputs[0] or squares.dim != summed.dim:
                return None
            return PairSum(inputs=summed.inputs, output=operation.output, dim=summed.dim)

        self._replace(found)

    def _plain(self) -> None:
        """Steps of terms that no operation stands for, by operations that compute the same."""
        plain: Records = []
        for operation in self.operations:
            if isinstance(operation, Subtract):
                negative = self._new(f"{operation.output}:negative", self.columns[operation.inputs[1]])
                plain.append(Affine(inputs=(operation.inputs[1],), output=negative, weight=-1.0))
                plain.append(Add(inputs=(operation.inputs[0], negative), output=operation.output))
            elif isinstance(operation, VectorSum):
                plain.extend(self._vector_sum(operation))
            else:
                plain.append(operation)
        self.operations = plain

    def _vector_sum(self, operation: VectorSum) -> list[Operation]:
        (given,), dim = operation.inputs, operation.dim
        starts = range(0, self.columns[given], dim)
        names = [self._new(f"{operation.output}:{first // dim}", dim) for first in starts]
        pieces: list[Operation] = [
            Columns(inputs=(given,), output=name, first=first, last=first + dim)
            for name, first in zip(names, starts, strict=True)
        ]
        if len(names) == 1:
            return [Affine(inputs=(given,), output=operation.output)]
        return [*pieces, Add(inputs=tuple(names), output=operation.output)]

    def _new(self, name: str, columns: int) -> str:
        self.columns[name] = columns
        return name

    def _folded_affines(self) -> None:
        """A norm behind a linear layer is in its weights."""

        def found(operation: AnyRecord, makers: dict[str, AnyRecord]) -> AnyRecord | None:
            if not isinstance(operation, Affine):
                return None
            linear = makers.get(operation.inputs[0])
            if not isinstance(linear, Linear) or linear.function != "none" or linear.groups != 1:
                return None
            scale, shift = (self._constant(each) for each in (operation.weight, operation.bias))
            weight = self.weights[linear.weight]
            column = scale if isinstance(scale, float) else scale.double()[:, None]
            name, bias_name = f"{linear.weight}:folded", f"{linear.output}.bias:folded"
            bias = 0.0 if linear.bias is None else self.weights[linear.bias].double()
            total = bias * (scale if isinstance(scale, float) else scale.double()) + shift
            self.weights[name] = (weight.double() * column).float()
            if isinstance(total, Tensor):
                self.weights[bias_name] = total.float()
            elif total:
                self.weights[bias_name] = weight.new_full((len(weight),), total)
            has_bias = isinstance(total, Tensor) or bool(total)
            changes = {"weight": name, "bias": bias_name if has_bias else None, "output": operation.output}
            return linear.model_copy(update=changes)

        self._replace(found)

    def _constant(self, constant: str | float) -> Any:
        return self.weights[constant] if isinstance(constant, str) else constant

    def _functions(self) -> None:
        """An activation behind a linear layer is part of it; the layer keeps its name."""

        def found(operation: AnyRecord, makers: dict[str, AnyRecord]) -> AnyRecord | None:
            if not isinstance(operation, Activation):
                return None
            linear = makers.get(operation.inputs[0])
            if not isinstance(linear, Linear) or linear.function != "none":
                return None
            return linear.model_copy(update={"function": operation.function, "output": operation.output})

        self._replace(found)

    def _multiply_adds(self) -> None:
        """x0 * W(x) + x."""

        def found(operation: AnyRecord, makers: dict[str, AnyRecord]) -> AnyRecord | None:
            if not (isinstance(operation, Add) and len(operation.inputs) == 2):
                return None
            for name, other in (operation.inputs, operation.inputs[::-1]):
                product = makers.get(name)
                if isinstance(product, Multiply):
                    inputs = (*product.inputs, other)
                    if len({self.columns[each] for each in inputs}) == 1:
                        return MultiplyAdd(inputs=inputs, output=operation.output)
            return None

        self._replace(found)

    def _long_sums(self) -> None:
        """(a + b) + c is one sum of three."""

        def found(operation: AnyRecord, makers: dict[str, AnyRecord]) -> AnyRecord | None:
            if not isinstance(operation, Add):
                return None
            begin = makers.get(operation.inputs[0])
            if not isinstance(begin, Add):
                return None
            inputs = (*begin.inputs, *operation.inputs[1:])
            if len({self.columns[each] for each in inputs}) != 1:
                return None
            return Add(inputs=inputs, output=operation.output)

        self._replace(found)


_STEPS = (VectorSum, Subtract)


def renamed(operations: Sequence[Operation], names: dict[str, str]) -> tuple[Operation, ...]:
    """Operations whose values have other names."""
    return tuple(
        each.model_copy(
            update={
                "inputs": tuple(names.get(name, name) for name in each.inputs),
                "output": names.get(each.output, each.output),
            }
        )
        for each in operations
    )


def _is_square(operation: AnyRecord | None) -> TypeGuard[Multiply]:
    return isinstance(operation, Multiply) and operation.inputs[0] == operation.inputs[1]


def _weights_of(operation: AnyRecord) -> list[str]:
    found = (getattr(operation, key, None) for key in ("weight", "bias"))
    return [name for name in found if isinstance(name, str)]
