"""`Recorder`: runs a model once and writes down which operators torch was asked for.

It sees what reaches the dispatcher, whatever the Python above it looked like, and the real tensors. A tensor
that came of the inputs has the name of a value, and is [samples, columns] row by row: views of it are the
same value under another shape. All others are constants, and so is what torch computes of constants alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megalith.core.errors import ConfigError
from megalith.export.tracing.records import AnyRecord

Handler = Callable[["Recorder", "Call"], None]


class Value(NamedTuple):
    """What the dense part computes for each sample."""

    name: str
    columns: int


class Call:
    """An operator, what it was called with, by the names of its schema, and what it gave."""

    def __init__(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        schema = operator._schema
        self.name: str = schema.name
        self.result = result
        self._given: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            given = args[position] if position < len(args) else kwargs.get(argument.name, default)
            self._given[argument.name] = given

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that some of an operator's forms do not have."""
        return self._given.get(name, default)


class Recorder(TorchDispatchMode):
    """Operations of one run of a model, with the weights they read."""

    def __init__(self, model: nn.Module, samples: int, handlers: dict[str, Handler]) -> None:
        super().__init__()
        self.samples = samples
        self.operations: list[AnyRecord] = []
        self.weights: dict[str, Tensor] = {}
        self.columns: dict[str, int] = {}
        """Of every value, by name."""
        self._handlers = handlers
        self._values: dict[int, Value] = {}
        self._kept: list[Tensor] = []
        """Tensors whose identity counts live as long as the recorder."""
        self._paths = {module: path for path, module in model.named_modules()}
        self._stack: list[str] = [""]
        named = [*model.named_parameters(), *model.named_buffers()]
        self._named = {_place(tensor): name for name, tensor in named if tensor.numel()}

    def modules(self) -> AbstractContextManager[None]:
        """While it is open, the module that runs is known."""
        return _ModuleStack(self._paths, self._stack)

    @property
    def where(self) -> str:
        """The module that runs, as a sentence names it."""
        return f"module '{self._stack[-1]}'" if self._stack[-1] else "the model itself"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operator; where it reads a value, writes it down."""
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        reads = any(id(leaf) in self._values for leaf in leaves)
        result = func(*args, **kwargs)
        if reads:
            handler = self._handlers.get(func._schema.name)
            if handler is None:
                raise self.refusal(f"runs {func._schema.name.replace('::', '.')}")
            handler(self, Call(func, args, kwargs, result))
        return result

    def refusal(self, what: str) -> ConfigError:
        """The sentence about something that no kind of operation stands for."""
        return ConfigError(
            f"{self.where[0].upper()}{self.where[1:]} {what}, for which a frozen model has no operation; "
            "write the model with linear layers, activations, norms, sums, products, concatenations and dot "
            "interactions."
        )

    def value(self, tensor: Any) -> Value:
        """The value that a tensor is; a constant is refused."""
        found = self.get(tensor)
        if found is None:
            raise self.refusal("uses a constant where a value of each sample belongs")
        return found

    def get(self, tensor: Any) -> Value | None:
        """The value that a tensor is, or None for a constant."""
        return self._values.get(id(tensor)) if isinstance(tensor, Tensor) else None

    def is_value(self, tensor: Any) -> bool:
        """Whether a tensor came of the inputs."""
        return self.get(tensor) is not None

    def name_tensor(self, tensor: Tensor, value: Value) -> None:
        """Says that a tensor is a value."""
        if tensor.numel() != self.samples * value.columns:
            raise self.refusal("mixes samples")
        self._values[id(tensor)] = value
        self._kept.append(tensor)
        self.columns[value.name] = value.columns

    def make(self, tensor: Tensor, kind: type[Any], **fields: Any) -> str:
        """Adds an operation whose output a tensor is; returns its name."""
        name = self.add(kind, tensor.numel() // self.samples, **fields)
        self.name_tensor(tensor, Value(name, self.columns[name]))
        return name

    def add(self, kind: type[Any], columns: int, **fields: Any) -> str:
        """Adds an operation of which no tensor is known; returns the name of its output."""
        name = self._free(self._stack[-1] or kind.__name__.lower(), self.columns)
        self.columns[name] = columns
        self.operations.append(kind(output=name, **fields))
        return name

    def weight(self, tensor: Tensor, suffix: str) -> str:
        """The name of a weight: of the model's own tensor where it is one."""
        tensor = tensor.detach()
        known = self._named.get(_place(tensor))
        name = known or f"{self._stack[-1] or 'constant'}.{suffix}"
        held = self.weights.get(name)
        if held is not None and not (held.shape == tensor.shape and torch.equal(held, tensor)):
            name = self._free(name, self.weights)
        self.weights[name] = tensor.float().contiguous()
        return name

    @staticmethod
    def _free(stem: str, taken: dict[str, Any]) -> str:
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}:{number}", number + 1
        return name


class _ModuleStack(AbstractContextManager[None]):
    """Keeps the path of the module that runs on top of a stack."""

    def __init__(self, paths: dict[nn.Module, str], stack: list[str]) -> None:
        self._paths, self._stack = paths, stack
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        def enter(module: nn.Module, _: Any) -> None:
            if module in self._paths:
                self._stack.append(self._paths[module])

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            if module in self._paths:
                self._stack.pop()

        self._hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies, and as what."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())
