"""docs/reference/config.md: every key of a recipe, from the pydantic models that read it."""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from markdown_text import anchor, code, docstring, page, table
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from source_text import field_docstrings, one_line

from megalith.core.store_spec import Bytes
from megalith.train.recipe import Recipe, recipe_names

INTRO = f"""A recipe is one YAML file. `megalith train RECIPE KEY=VALUE` changes single keys:
`train.steps=100`, `model.kind=dcnv2`, lists by index. A key that does not exist is refused with the nearest
one that does. `null` means that a key is not set; the meanings call it None. These recipes ship:
{", ".join(map(code, recipe_names()))}."""

NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path", Any: "anything"}
_BYTES = get_args(Bytes)[1]
"""What makes an integer a size: it takes text such as 4GiB."""


class Sections:
    """The models that a recipe is made of, each with the dotted keys that hold it."""

    def __init__(self, root: type[BaseModel]) -> None:
        self.paths: dict[type[BaseModel], list[str]] = {}
        self._visit(root, "")

    def _visit(self, model: type[BaseModel], path: str) -> None:
        known = model in self.paths
        paths = self.paths.setdefault(model, [])
        if path not in paths:
            paths.append(path)
        if not known:
            for name, field in model.model_fields.items():
                for inner, below in _models(field.annotation, f"{path}.{name}".lstrip(".")):
                    self._visit(inner, below)

    def heading(self, model: type[BaseModel]) -> str:
        """The keys that hold a model, and its kind where there are several."""
        kind = model.model_fields.get("kind")
        several = kind is not None and any(
            other is not model and set(self.paths[other]) & set(self.paths[model]) for other in self.paths
        )
        kinds = f": {' or '.join(get_args(kind.annotation))}" if several else ""
        return ", ".join(self.paths[model]) + kinds

    def link(self, model: type[BaseModel]) -> str:
        """A link to where a model's keys are."""
        heading = self.heading(model)
        return f"[{heading.partition(': ')[2] or 'mapping'}](#{anchor(heading)})"


def _models(annotation: Any, path: str) -> list[tuple[type[BaseModel], str]]:
    """The models in an annotation, each with its path; a mapping has names of tables for keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, path)]
    if get_origin(annotation) is dict:
        path += ".TABLE"
    return [pair for part in get_args(annotation) for pair in _models(part, path)]


def type_text(annotation: Any, metadata: list[Any], sections: Sections | None) -> str:
    """A type in plain words, with what bounds it; models are links where there are sections."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(parts[0], [*metadata, *parts[1:], *_inner(parts[1:])], sections)
    if origin in (Union, types.UnionType):
        given = [type_text(part, metadata, sections) for part in parts if part is not type(None)]
        return ", ".join(given) + ((", null" if sections else ", None") if type(None) in parts else "")
    if origin is Literal:
        return ", ".join(code(str(part)) for part in parts)
    if origin is tuple and parts[-1] is not ...:
        return f"list of {len(parts)}, each {type_text(parts[0], [], sections)}"
    if origin in (tuple, list):
        return f"list of {type_text(parts[0], [], sections)}{_bounds(metadata)}"
    if origin is dict:
        return f"mapping of names to {type_text(parts[1], [], sections)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sections.link(annotation) if sections else code(annotation.__name__)
    name = NAMES.get(annotation) or code(annotation.__name__)
    if _BYTES in metadata:
        name = "bytes, as `4GiB`"
    return name + (_bounds(metadata) if annotation in (int, float, str) else "")


def _inner(metadata: tuple[Any, ...]) -> list[Any]:
    return [inner for one in metadata if isinstance(one, FieldInfo) for inner in one.metadata]


def _bounds(metadata: list[Any]) -> str:
    texts = []
    for bound in metadata:
        match bound:
            case Ge(ge=value):
                texts.append(f"from {_number(value)}")
            case Gt(gt=value):
                texts.append(f"above {_number(value)}")
            case Le(le=value):
                texts.append(f"up to {_number(value)}")
            case Lt(lt=value):
                texts.append(f"below {_number(value)}")
            case MinLen(min_length=value):
                texts.append(f"at least {value}")
        if getattr(bound, "pattern", None):
            texts.append(f"as {code(bound.pattern)}")
    return "".join(f", {text}" for text in texts)


def _number(value: Any) -> str:
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value > 1 << 40 else str(value)


def default_of(field: FieldInfo) -> Any:
    """The default itself."""
    return field.get_default(call_default_factory=True, validated_data={})


def default_text(field: FieldInfo, *, python: bool) -> str:
    """The default as YAML, or as Python writes it."""
    if field.is_required():
        return "required"
    default = default_of(field)
    if python:
        return code(repr(default))
    if isinstance(default, BaseModel):
        content = default.model_dump(mode="json", exclude_defaults=True)
        kind = getattr(default, "kind", None)
        content = ({"kind": kind} if kind else {}) | content
        return code(_flow(content)) if content else ""
    return code(_flow(list(default) if isinstance(default, tuple) else default))


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def field_rows(model: type[BaseModel], sections: Sections | None = None) -> list[list[str]]:
    """A row for each key: its name, type, default and meaning."""
    meanings = field_docstrings(model)
    return [
        [
            code(name),
            type_text(field.annotation, field.metadata, sections),
            default_text(field, python=sections is None),
            meanings.get(name, ""),
        ]
        for name, field in model.model_fields.items()
        if not (name == "kind" and len(get_args(field.annotation)) == 1)
    ]


def undocumented_keys() -> list[str]:
    """Keys of a recipe that have no docstring beneath them."""
    return [
        f"{model.__name__}.{row[0].strip('`')}"
        for model in Sections(Recipe).paths
        for row in field_rows(model)
        if not row[3]
    ]


def _section(model: type[BaseModel], sections: Sections) -> str:
    text = docstring(inspect.getdoc(model) or "")
    rows = field_rows(model, sections)
    keys = [table(["key", "value", "default", "meaning"], rows)] if rows else ["It has no other keys."]
    title = sections.heading(model) or "The sections"
    return "\n\n".join([f"## {title}", text, *keys])


def config_page() -> str:
    """The whole page."""
    sections = Sections(Recipe)
    rows = [
        [f"[{code(sections.heading(model))}](#{anchor(sections.heading(model))})", _first_line(model)]
        for model in sections.paths
        if model is not Recipe
    ]
    contents = table(["section", ""], rows)
    return page("Keys of a recipe", INTRO, contents, *(_section(model, sections) for model in sections.paths))


def _first_line(model: type[BaseModel]) -> str:
    return one_line((inspect.getdoc(model) or "").split("\n\n")[0])
