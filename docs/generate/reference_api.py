"""docs/reference/api.md: every public name of `megalith`, from its own source."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from markdown_text import anchor, code, docstring, fenced, page, table
from pydantic import BaseModel
from reference_config import default_of, field_rows
from source_text import call, field_docstrings, one_line, signature

import megalith

INTRO = """What `import megalith as mg` offers; `help(mg.Trainer)` prints the same. Names load on first use.
All else in the package is internal and may change between versions."""


def _methods(cls: type) -> list[tuple[str, Any]]:
    """Methods and properties that public classes of the package define, in the order of the source."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if _is_ours(base) and not base.__name__.startswith("_"):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return [(name, value) for name, value in found.items() if _function_of(value) is not None]


def _is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "megalith"


def _function_of(value: Any) -> Any:
    """The function of a method or property; None of anything else."""
    if isinstance(value, property):
        return value.fget
    function = getattr(value, "__func__", value)
    return function if inspect.isfunction(function) else None


def _method(owner: str, name: str, value: Any) -> str:
    function = _function_of(value)
    text = docstring(inspect.getdoc(function) or "")
    if isinstance(value, property):
        return f"{code(name)} (property): {text}"
    static = isinstance(value, staticmethod)
    called = f"{owner}.{name}" if isinstance(value, staticmethod | classmethod) else name
    return f"{fenced(signature(called, function, method=not static), 'python')}\n\n{text}"


def _constructor(name: str, cls: type) -> str:
    if issubclass(cls, BaseModel):
        keywords = [_keyword(key, field) for key, field in cls.model_fields.items() if key != "kind"]
        # Required ones first; all are given by name.
        return call(name, ["*", *sorted(keywords, key=lambda keyword: "=" in keyword)])
    if dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        return call(name, [f"{f.name}: {f.type}" + (" = None" if f.default is None else "") for f in fields])
    if issubclass(cls, Exception):
        return call(name, ["message: str"])
    return signature(name, cls.__init__, method=True)  # type: ignore[misc]


def _keyword(key: str, field: Any) -> str:
    return key if field.is_required() else f"{key}={default_of(field)!r}"


def _fields(cls: type) -> list[str]:
    if issubclass(cls, BaseModel):
        return [table(["field", "value", "default", "meaning"], field_rows(cls))]
    if dataclasses.is_dataclass(cls):
        meanings = field_docstrings(cls)
        return [table(["field", "meaning"], ([code(key), text] for key, text in meanings.items()))]
    return []


def _section(name: str) -> str:
    thing = getattr(megalith, name)
    parts = [f"## {name}"]
    if isinstance(thing, type):
        parts += [fenced(_constructor(name, thing), "python"), docstring(_doc(thing)), *_fields(thing)]
        return "\n\n".join([*parts, *_method_parts(thing)])
    parts += [fenced(signature(name, thing), "python"), docstring(_doc(thing))]
    result = thing.__globals__.get(thing.__annotations__["return"])
    if isinstance(result, type) and result.__name__ not in megalith.__all__ and _is_ours(result):
        parts += [f"### {result.__name__}", docstring(_doc(result)), *_method_parts(result)]
    return "\n\n".join(parts)


def _method_parts(cls: type) -> list[str]:
    return [_method(cls.__name__, key, value) for key, value in _methods(cls)]


def _doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _summary(name: str) -> list[str]:
    first = one_line(_doc(getattr(megalith, name)).split("\n\n")[0])
    return [f"[{code(name)}](#{anchor(name)})", first]


def api_page() -> str:
    """The whole page."""
    names = sorted(megalith.__all__, key=str.lower)
    return page("Python", INTRO, table(["name", ""], map(_summary, names)), *map(_section, names))
