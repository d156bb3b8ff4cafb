"""Tables of a page: empty columns are left out, long text is cut and whole on hover."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

NONE = "\u2013"
MAX_CELL, MAX_WORDS = 44, 160
"""Characters of a cell that are shown, and of one whose text wraps."""


def shorten(text: str, most: int = MAX_CELL) -> str:
    """The beginning of a long text, with an ellipsis.

    >>> shorten("user_history_categories", 12)
    'user_histor\u2026'
    """
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def text_html(text: str, most: int = MAX_CELL) -> str:
    """Escaped text, cut where it is long; the whole of it shows on hover."""
    if len(text) <= most:
        return escape(text)
    return f'<span title="{escape(text)}">{escape(shorten(text, most))}</span>'


def filled_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns that hold anything: the first, and those of which a cell is not empty."""
    count = len(rows[0]) if rows else 0
    return [column for column in range(count) if not column or any(_is_filled(row[column]) for row in rows)]


def table_html(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Collection[str] = (),
    marked: Collection[tuple[int, int]] = (),
    narrow: bool = False,
) -> str:
    """A table in a card. Columns of `words` wrap, cells of `marked` (row, column) stand out, a `narrow`
    one has room for more columns."""
    kept = filled_columns(rows)
    kind = {column: ' class="words"' for column in kept if columns[column] in words}
    head = "".join(f'<th scope="col"{kind.get(column, "")}>{escape(columns[column])}</th>' for column in kept)
    body = ""
    for number, row in enumerate(rows):
        body += "<tr>"
        for column in kept:
            shown = text_html(row[column], MAX_WORDS if column in kind else MAX_CELL)
            if (number, column) in marked:
                shown = f"<mark>{shown}</mark>"
            body += f"<td{kind.get(column, '')}>{shown}</td>"
        body += "</tr>"
    kind_of_table = ' class="narrow"' if narrow else ""
    return (
        f'<div class="card scroll"><table{kind_of_table}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_filled(cell: str) -> bool:
    return cell.strip() not in ("", "-", NONE)
