"""What commands print: lines and tables for people, or one JSON object; progress goes to standard error.

Everything that a command says goes through `say` (standard output) or `note` (standard error). Paths, names
and settings are the user's text: no bracket in them is markup, no `:name:` an emoji, no number is coloured,
and no line is wrapped, so that what is printed can be copied and searched whatever the terminal's width.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions
from rich.progress import ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from megalith.cli import drop_output
from megalith.core.errors import without_controls

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
_NO_LIMIT = 1 << 16


class _PlainConsole(Console):
    """Takes text as it is, in cells of tables too, and has no width unless it is a terminal."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        size = super().size
        return size if self.is_terminal else ConsoleDimensions(_NO_LIMIT, size.height)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


console = _PlainConsole()
progress_console = _PlainConsole(stderr=True)


def say(*parts: str | tuple[str, str]) -> None:
    """One line on standard output; a part is plain text, or (text, style) such as ("Models", "bold")."""
    with _reader_may_leave():
        console.print(_line(parts))


def note(*parts: str | tuple[str, str]) -> None:
    """One line on standard error."""
    progress_console.print(_line(parts))


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error beside `text`, which the function that it yields replaces."""
    # A string would be read as markup.
    with progress_console.status(Text(without_controls(text))) as status:
        yield lambda line: status.update(Text(without_controls(line)))


def text_column(template: str) -> ProgressColumn:
    """A column of a progress bar, such as `{task.description}`, whose text is taken as it is."""
    return TextColumn(template, markup=False)


def print_json(content: Any) -> None:
    """One JSON object on standard output."""
    with _reader_may_leave():
        json.dump(content, sys.stdout)
        sys.stdout.write("\n")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], header: bool = True
) -> None:
    """A table for people; numbers are aligned to the right. Only on a terminal is it fitted to a width."""
    listed = [[without_controls(str(cell)) for cell in row] for row in rows]
    table = Table(show_header=header)
    for position, column in enumerate(columns):
        numeric = bool(listed) and all(row[position][:1].isdigit() or row[position] == "" for row in listed)
        table.add_column(without_controls(column), justify="right" if numeric and header else "left")
    for row in listed:
        table.add_row(*row)
    if title:
        say((title, "italic"))
    with _reader_may_leave():
        console.print(table, soft_wrap=False)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Who reads our output (head, less) may have enough of it; nothing is wrong then."""
    try:
        yield
    except BrokenPipeError:
        drop_output()
        raise SystemExit(0) from None


def _line(parts: Sequence[str | tuple[str, str]]) -> Text:
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(without_controls(text, keep="\n"), style=style)
    return line
