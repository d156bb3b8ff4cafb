"""Configuration: frozen pydantic models read from YAML, with `a.b=c` overrides.

Unknown keys are refused with the nearest valid name; every message names the file and the dotted key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from megalith.core.bounded_yaml import YamlError, parse_yaml
from megalith.core.errors import ConfigError, MegalithError, nearest
from megalith.core.files import MAX_DEPTH, read_text


class Config(BaseModel):
    """Base of every configuration: frozen, closed to keys it does not know, and to infinity and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or one sentence that names the file and line."""
    text = read_text(path, fix="name a YAML file", missing="check the path", error=ConfigError)
    try:
        content = parse_yaml(text)
    except YamlError as error:
        where = str(path) if error.line is None else f"{path}, line {error.line}"
        raise ConfigError(f"{where}: {error}; fix the YAML there.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping of keys to values.")
    return content


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `content` with each `a.b=c` laid over it; values are read as YAML, lists by position.

    >>> apply_overrides({"train": {"steps": 10}}, ["train.steps=20"])
    {'train': {'steps': 20}}
    """
    result: dict[str, Any] = _copy(content)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"Override '{_shortened(override)}' must have the form key=value, such as train.steps=100."
            )
        try:
            value = parse_yaml(text) if text else None
        except YamlError as error:
            raise ConfigError(
                f"Override '{_shortened(override)}' has no YAML value ({error}); quote it."
            ) from error
        *parents, last = key.strip().split(".")
        if len(parents) >= MAX_DEPTH:
            raise ConfigError(f"Override '{_shortened(override)}' has more dots than any key; check it.")
        node: Any = result
        for parent in parents:
            place = _place(node, parent, override)
            child = node[place] if isinstance(node, list) else node.get(place)
            if child is None:
                child = node[place] = {}
            if not isinstance(child, dict | list):
                raise ConfigError(
                    f"Override '{_shortened(override)}': '{parent}' is a single value and has no keys inside."
                )
            node = child
        node[_place(node, last, override)] = value
    return result


def with_kinds_replaced(
    cls: type[BaseModel], content: dict[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """`content` without the keys of a part whose `kind` an override replaced, where the new kind lacks them.

    `cls` is what the content will be; keys that an override brought stay. Also the keys that were dropped.
    """
    content, dropped = _copy(content), []
    brought = [override.partition("=")[0].strip() for override in overrides]
    for name in brought:
        *path, last = name.split(".")
        part = _part_at(content, path)
        if last != "kind" or part is None:
            continue
        fields = _fields_of_kind(cls, path, part["kind"])
        if fields is None:
            continue
        for key in [key for key in part if key not in fields]:
            whole = ".".join([*path, key])
            if not any(other == whole or other.startswith(f"{whole}.") for other in brought):
                del part[key]
                dropped.append(whole)
    return content, dropped


def _part_at(content: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    node: Any = content
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) and "kind" in node else None


def _fields_of_kind(cls: type[BaseModel], path: Sequence[str], kind: Any) -> set[str] | None:
    """The keys of that kind at a path; None where there is no such kind."""
    candidates = [cls]
    for key in path:
        found = [each.model_fields[key].annotation for each in candidates if key in each.model_fields]
        candidates = [model for annotation in found for model in _models_in(annotation)]
    return next((set(each.model_fields) for each in candidates if _tag(each) == kind), None)


def parse_config(
    cls: type[ConfigT],
    content: dict[str, Any],
    source: str,
    fix: str = "",
    error: type[MegalithError] = ConfigError,
    overrides: Sequence[str] = (),
) -> ConfigT:
    """`content` as a `cls`; the first thing wrong becomes one sentence that names `source` and the key.

    `fix` says what to do about a file that no one writes by hand. What one of the `overrides` brought is the
    command line's, and is told so.
    """
    try:
        return cls.model_validate(content)
    except ValidationError as problem:
        sentence = _sentence(cls, problem, content, source, overrides)
        raise error(f"{sentence.rstrip('.')}; {fix}." if fix else sentence) from problem


def load_config(cls: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Reads a YAML file, lays the overrides over it and validates the result."""
    content = apply_overrides(load_yaml(path), overrides)
    return parse_config(cls, content, str(path), overrides=overrides)


def to_yaml(config: BaseModel) -> str:
    """The configuration, complete with its defaults, as YAML that `load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _copy(node: Any) -> Any:
    if isinstance(node, list):
        return [_copy(value) for value in node]
    return {key: _copy(value) for key, value in node.items()} if isinstance(node, dict) else node


def _place(node: dict[str, Any] | list[Any], key: str, override: str) -> Any:
    """The key, or its position where `node` is a list; one that the list lacks is refused."""
    if isinstance(node, dict):
        return key
    if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= len(node):
        raise ConfigError(
            f"Override '{_shortened(override)}': '{_shortened(key)}' must be a position in a list of "
            f"{len(node)}, from 0 on."
        )
    return int(key)


def _sentence(
    cls: type[BaseModel], error: ValidationError, content: Any, source: str, overrides: Sequence[str]
) -> str:
    # An unknown key explains most of what follows from it, so it is reported first.
    details = error.errors()
    detail = next((entry for entry in details if entry["type"] == "extra_forbidden"), details[0])
    location = detail["loc"]
    keys = _keys(content, location)
    key = ".".join(keys)
    source = _override_of(keys, overrides) or source
    if detail["type"] == "extra_forbidden":
        owner = _model_at(cls, location[:-1])
        names = list(owner.model_fields) if owner else []
        return f"{source}: unknown key '{key}'; {nearest(str(location[-1]), names)}"
    if detail["type"] == "union_tag_not_found":
        return f"{source}: key '{key}.kind' is missing; add it."
    if detail["type"] == "missing":
        return f"{source}: key '{key}' is missing; add it."
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    given = detail.get("input")
    shown = f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) else ""
    where = f"key '{key}': " if key else ""
    return f"{source}: {where}{message}{shown}."


def _override_of(keys: Sequence[str], overrides: Sequence[str]) -> str | None:
    """The override that brought what is at `keys`, or a part of it, as it stood on the command line."""
    for override in reversed(overrides):
        named = override.partition("=")[0].strip().split(".")
        shared = min(len(named), len(keys))
        if keys and named[:shared] == list(keys[:shared]):
            return f"Command line, {_shortened(override)}"
    return None


def _keys(content: Any, location: tuple[int | str, ...]) -> list[str]:
    """A location as it was written: pydantic also names unions and the kinds in them."""
    keys, node = [], content
    for position, part in enumerate(location):
        is_there = (
            part in node
            if isinstance(node, dict)
            else isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        )
        if is_there or (position == len(location) - 1 and isinstance(node, dict) and "[" not in str(part)):
            keys.append(str(part))
        if is_there:
            node = node[part]
    return keys


def _model_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model class a validation error's location points into, through unions, lists and options."""
    model_class: type[BaseModel] | None = cls
    candidates: list[type[BaseModel]] = [cls]
    for part in location:
        annotations = [c.model_fields[part].annotation for c in candidates if part in c.model_fields]
        if annotations:
            candidates = [model for annotation in annotations for model in _models_in(annotation)]
        else:
            # A list position, or the tag of a discriminated union ('dcnv2'), which pydantic puts in the path.
            tagged = [c for c in candidates if _tag(c) == part]
            candidates = tagged or candidates
        model_class = candidates[0] if candidates else None
    return model_class


def _tag(model: type[BaseModel]) -> Any:
    kind = model.model_fields.get("kind")
    return kind.default if kind else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
