"""What the columns of a table are taken for, as `megalith data prepare` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from megalith.data.prepare import PrepareOptions
    from megalith.data.readers import ColumnListing


def show_listing(options: PrepareOptions, as_json: bool) -> None:
    """`--dry-run`: the listing and nothing else; what would be refused is, once it is printed."""
    from megalith.data.prepare import list_frame

    listing = list_frame(options, (lambda listing: None) if as_json else print_listing)
    if as_json:
        print_json(listing.model_dump(mode="json"))


def print_listing(listing: ColumnListing) -> None:
    """The table, and what to look at below it."""
    say(f"{listing.file}: columns as its first {listing.sample_rows:,} rows have them")
    print_table(
        "",
        ("column", "type", "taken as", "why", "distinct", "missing", "examples"),
        [
            (
                entry.column,
                entry.type,
                entry.taken_as,
                entry.rule,
                "" if entry.distinct is None else f"{entry.distinct:,}",
                f"{entry.missing:.1%}" if entry.missing else "",
                ", ".join(entry.examples),
            )
            for entry in listing.columns
        ],
    )
    for note in listing.notes():
        say(note)
