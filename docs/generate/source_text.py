"""What only the source says: docstrings beneath fields, and signatures with defaults as they are written."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

WIDTH = 110


def field_docstrings(cls: type) -> dict[str, str]:
    """The docstring beneath each field of a class and its bases, each as one line."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("megalith"):
            found |= _beneath(_tree(base).body)
    return found


def _beneath(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = _docstring(after)
            if text is not None:
                found[field.target.id] = one_line(text)
    return found


def _docstring(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None


def one_line(text: str) -> str:
    """Text with its lines joined."""
    return " ".join(text.split())


def _tree(thing: Any) -> Any:
    """The statement that defines a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def signature(name: str, function: Callable[..., Any], *, method: bool = False) -> str:
    """A call as it is written in the source, one parameter a line where it is long."""
    definition = _tree(inspect.unwrap(function))
    arguments: ast.arguments = definition.args
    if method:
        del (arguments.posonlyargs or arguments.args)[0]
    result = ast.unparse(definition.returns) if definition.returns else "None"
    return call(name, _parameters(arguments), "" if definition.name == "__init__" else f" -> {result}")


def call(name: str, parameters: list[str], end: str = "") -> str:
    """`name(parameters)`, one parameter a line where it is long."""
    short = f"{name}({', '.join(parameters)}){end}"
    if len(short) <= WIDTH:
        return short
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){end}"])


def _parameters(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    parts = [
        _parameter(argument, default)
        for argument, default in zip(positional, [*missing, *arguments.defaults], strict=True)
    ]
    if arguments.vararg:
        parts.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(_parameter(argument, default))
    if arguments.kwarg:
        parts.append(f"**{_parameter(arguments.kwarg, None)}")
    return parts


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {ast.unparse(argument.annotation)}"
    if default is None:
        return text
    equals = "=" if argument.annotation is None else " = "
    return f"{text}{equals}{ast.unparse(default)}"
