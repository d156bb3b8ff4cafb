"""What commands print: tables for people, or one JSON object; progress goes to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

console = Console()
progress_console = Console(stderr=True)


def print_json(content: Any) -> None:
    """One JSON object on standard output."""
    json.dump(content, sys.stdout)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people; numbers are aligned to the right."""
    table = Table(title=title, title_justify="left")
    listed = [[str(cell) for cell in row] for row in rows]
    for position, column in enumerate(columns):
        numeric = bool(listed) and all(row[position][:1].isdigit() or row[position] == "" for row in listed)
        table.add_column(column, justify="right" if numeric else "left")
    for row in listed:
        table.add_row(*row)
    console.print(table)
