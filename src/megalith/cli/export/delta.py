"""`megalith export NEW --over BASE --out DIR`: what changed between two versions of a frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.cli.output import print_json, print_table, say, working


def export_delta(base: Path, new: Path, out: Path | None, others: Sequence[str], json_output: bool) -> None:
    """Writes the delta and prints which tables it has rows of; `others` are options that have no meaning
    here."""
    from megalith.core.errors import ConfigError
    from megalith.export.delta import write_delta

    if out is None:
        raise ConfigError("Name the folder of the delta with --out.")
    if others:
        raise ConfigError(f"--over compares two models that are frozen already; leave out {others[0]}.")
    with working(f"comparing {new} with {base}"):
        delta = write_delta(base, new, out)
    records = {record.name: record for record in delta.manifest.tables}
    size = sum(record.bytes for record in delta.files.values())
    whole = sum(record.bytes for record in delta.manifest.files.values())
    result: dict[str, Any] = {
        "out": str(out),
        "base": str(base),
        "model": delta.manifest.name,
        "step": delta.manifest.step,
        "tables": [{**change.model_dump(), "of_rows": records[change.name].rows} for change in delta.tables],
        "files": sorted(delta.files),
        "bytes": size,
        "whole_bytes": whole,
    }
    if json_output:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes

    if result["tables"]:
        print_table(
            "Tables that changed",
            ("table", "sent", "rows", "of", "bytes"),
            [
                (
                    table["name"],
                    "changed rows" if table["kind"] == "rows" else "whole",
                    f"{table['rows']:,}",
                    f"{table['of_rows']:,}",
                    f"{table['bytes']:,}",
                )
                for table in result["tables"]
            ],
        )
    else:
        say("No table changed.")
    share = result["bytes"] / result["whole_bytes"] if result["whole_bytes"] else 0.0
    say(
        f"{result['out']}: a delta over {result['base']}, {format_bytes(result['bytes'])}, "
        f"{share:.1%} of the whole version"
    )
