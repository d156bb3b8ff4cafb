"""docs/reference/commands.md: every command with its arguments and options, from the typer application.

Read from the functions behind the commands rather than from what typer prints: that depends on its version
and on the width of a terminal.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer
from markdown_text import anchor, code, docstring, page, table
from typer.models import ArgumentInfo, OptionInfo

from megalith.cli.app import app

INTRO = """`megalith COMMAND --help` prints the same. `--version` prints the version, `--debug` before a
command shows the traceback of an error, `--install-completion` sets up completion of the shell. One that
fails says why in one sentence and exits with 2; with `--json` it prints `{"error": ...}`."""

_SAID_DEFAULT = re.compile(r"\s*\[(?:default: ([^\]]*)|(required[^\]]*))\]")
"""What a help text says itself, where the default is found out when the command runs."""

NAMES = {bool: "flag", int: "integer", float: "number", str: "text", Path: "path"}


class Command(NamedTuple):
    """A command: its name with that of its group, and the function behind it."""

    name: str
    function: Any


class Parameter(NamedTuple):
    """An argument or an option of a command."""

    name: str
    info: ArgumentInfo | OptionInfo
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty


def commands(group: typer.Typer, prefix: str = "megalith") -> Iterator[Command]:
    """All commands of a typer application, groups first."""
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, f"{prefix} {inner.name}")
    for command in group.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        if not command.hidden:
            yield Command(f"{prefix} {name}", command.callback)


def parameters(command: Command) -> list[Parameter]:
    """What a command takes, in order."""
    hints = get_type_hints(command.function, include_extras=True)
    taken = []
    for name, parameter in inspect.signature(command.function).parameters.items():
        if get_origin(hints[name]) is Annotated:
            annotation, info = get_args(hints[name])[:2]
            taken.append(Parameter(name, info, annotation, parameter.default))
    return taken


def _names(parameter: Parameter) -> str:
    """As it is written on a command line."""
    info, dashed = parameter.info, parameter.name.replace("_", "-")
    if isinstance(info, OptionInfo):
        plain = f"--{dashed}/--no-{dashed}" if parameter.annotation is bool else f"--{dashed}"
        # In an annotation the first name takes the place of a default.
        given = [*([info.default] if isinstance(info.default, str) else []), *(info.param_decls or ())]
        return ", ".join(given or [plain])
    return (info.metavar or parameter.name.upper()).strip("[].")


def _type(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return ", ".join(_type(part) for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) in (list, tuple):
        return f"{_type(get_args(annotation)[0])}, several"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(code(str(member.value)) for member in annotation)
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _row(parameter: Parameter) -> list[str]:
    info = parameter.info
    kind = _type(parameter.annotation)
    if isinstance(info, OptionInfo) and info.metavar:
        kind = code(info.metavar)
    limits = (("at least", info.min), ("at most", info.max))
    bounds = [f"{words} {limit}" for words, limit in limits if limit is not None]
    help_text = info.help or ""
    said = _SAID_DEFAULT.search(help_text)
    meaning = _SAID_DEFAULT.sub("", help_text)
    default = said[1] or said[2] if said else _default(parameter)
    return [code(_names(parameter)), ", ".join([kind, *bounds]), default, meaning]


def _default(parameter: Parameter) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if isinstance(parameter.info.show_default, str):
        return parameter.info.show_default
    if default is None or default is False or default in ((), []):
        return ""
    if isinstance(default, Enum):
        default = default.value
    return code("on" if default is True else str(default))


def _usage(command: Command, taken: list[Parameter]) -> str:
    words = [command.name]
    for parameter in taken:
        if isinstance(parameter.info, ArgumentInfo):
            several = "..." if "several" in _type(parameter.annotation) else ""
            name = _names(parameter)
            word = name if "..." in name else name + several
            words.append(word if parameter.required else f"[{word}]")
    return " ".join([*words, "[OPTIONS]"])


def _section(command: Command) -> str:
    taken = parameters(command)
    parts = [f"## {command.name}", docstring(inspect.getdoc(command.function) or "")]
    parts.append(f"```\n{_usage(command, taken)}\n```")
    if taken:
        parts.append(table(["name", "value", "default", "meaning"], map(_row, taken)))
    return "\n\n".join(parts)


def _summary(command: Command) -> list[str]:
    first = (inspect.getdoc(command.function) or "").split("\n\n")[0]
    return [f"[{code(command.name)}](#{anchor(command.name)})", first]


def unexplained() -> list[str]:
    """Arguments and options without a help text."""
    return [
        f"{command.name} {_names(parameter)}"
        for command in commands(app)
        for parameter in parameters(command)
        if not parameter.info.help
    ]


def commands_page() -> str:
    """The whole page."""
    every = list(commands(app))
    return page("Commands", INTRO, table(["command", ""], map(_summary, every)), *map(_section, every))
