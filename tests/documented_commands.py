"""The `megalith ...` commands that README and guides show, and how they are read by the real command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)(?: title=\"[^\"]+\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|[\s;(]|-m )megalith ([a-z-].*)$")
_END = re.compile(r"\s(?:&&|\|\||[|;&]|\d?>+|#)(?:\s|$).*$")
OPEN = ("...", "…", "$")
"""What says that something is left out, or is known only when the line before has run."""


@dataclass(frozen=True)
class DocumentedCommand:
    """One command of a page."""

    page: str
    words: tuple[str, ...]
    """Without `megalith`."""
    is_run: bool
    """Whether it is in a block that the tests run."""
    is_named: bool
    """Whether it is named within a sentence, where arguments may be left out."""

    @property
    def text(self) -> str:
        """As one would type it."""
        return f"{self.page}: megalith {shlex.join(self.words)}"


def documented_commands() -> list[DocumentedCommand]:
    """All of them, in the order of pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for language, content in _FENCE.findall(text):
            is_run = language == "bash" and page.parent.name == "guides"
            if language in ("", "bash", "text"):
                lines = content.replace("\\\n", " ").splitlines()
                found += [_read(page, line, is_run=is_run, is_named=False) for line in lines]
        # A span may be broken over two lines.
        prose = re.sub(r"(?<=[^\n`])\n(?=[^\n`|#-])", " ", _FENCE.sub("", text))
        found += [_read(page, span, is_run=False, is_named=True) for span in _SPAN.findall(prose)]
    return [command for command in found if command is not None]


def _read(page: Path, line: str, *, is_run: bool, is_named: bool) -> DocumentedCommand | None:
    match = _COMMAND.search(line)
    if match is None:
        return None
    # Output of the command itself begins with its name and a colon.
    try:
        words = shlex.split(_END.sub("", match[1] + " ").strip().rstrip("\\").strip())
    except ValueError:
        return None
    return DocumentedCommand(page.name, tuple(words), is_run, is_named) if words else None


def resolve(words: tuple[str, ...]) -> tuple[Any, list[str], list[str]]:
    """The command of the real program, its path, and what is left; KeyError where there is none."""
    from megalith.cli.app import app

    # Of click, or of the copy of it that some releases of typer have.
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    left = list(words)
    while is_group(command) and left and not left[0].startswith("-"):
        if left[0] in OPEN or "|" in left[0]:
            break
        command = command.commands[left.pop(0)]
        path.append(command.name or "")
    return command, path, left


def is_group(command: Any) -> bool:
    """Whether it has commands of its own."""
    return hasattr(command, "commands")


def options_of(words: list[str]) -> set[str]:
    """Names of the options among some words."""
    return {word.split("=")[0] for word in words if re.match(r"-{1,2}[A-Za-z]", word)}


def known_options(command: Any) -> set[str]:
    """Names of the options of a command."""
    names = {"--help", "-h", "--version", "--debug", "--install-completion"}
    return names.union(*(option.opts + option.secondary_opts for option in command.params))
