"""`megalith data stats`: what a prepared data set looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megalith.cli.output import JsonFlag, console, note, print_json, print_table, working


def stats(
    path: Annotated[Path, typer.Argument(help="Folder of a prepared data set.")],
    split: Annotated[str, typer.Option(help="The split to measure.")] = "train",
    save: Annotated[bool, typer.Option("--save", help="Write statistics.json beside the data.")] = False,
    json: JsonFlag = False,
) -> None:
    """Measure a prepared data set: click rate, how often ids repeat, how numbers spread."""
    from megalith.core.units import format_count
    from megalith.data.stats import STATISTICS_FILE, measure, write_statistics

    with working("Measuring") as update:
        found = measure(path, split, lambda column: update(f"Measuring {column}"))
    if save:
        write_statistics(path, found)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    best = "" if found.best_log_loss is None else f", best log loss {found.best_log_loss:.5f}"
    title = f"{path}, {split}: {found.rows:,} rows, click rate {found.click_rate:.4f}{best}"
    columns: dict[str, list[str]] = {
        "feature": [one.name for one in found.features],
        "ids": [format_count(one.num_ids) for one in found.features],
        "seen": [format_count(one.distinct_ids) for one in found.features],
        "missing": [f"{one.missing_share:.3f}" for one in found.features],
        "top 1": [f"{one.top_1_share:.3f}" for one in found.features],
        "10": [f"{one.top_10_share:.3f}" for one in found.features],
        "100": [f"{one.top_100_share:.3f}" for one in found.features],
        "once": [f"{one.seen_once_share:.3f}" for one in found.features],
        "skew": ["" if one.skew is None else f"{one.skew:.2f}" for one in found.features],
    }
    # A column that most data sets do not need appears only where it says something; 80 characters are few.
    if any(one.unknown_share for one in found.features):
        columns["unknown"] = [f"{one.unknown_share:.3f}" for one in found.features]
        if console.is_terminal and console.width < 90:
            del columns["skew"]
    print_table(title, list(columns), zip(*columns.values(), strict=True))
    bags = [one for one in found.features if one.max_length > 1]
    if bags:
        lengths = (
            (one.name, f"{one.mean_length:.2f}", one.max_length, f"{one.empty_share:.3f}") for one in bags
        )
        print_table("", ("multi-hot", "mean length", "longest", "empty"), lengths)
    if found.numeric:
        columns = {
            "number": [one.name for one in found.numeric],
            "zero": [f"{one.zero_share:.3f}" for one in found.numeric],
            "mean": [f"{one.mean:.3g}" for one in found.numeric],
            "spread": [f"{one.deviation:.3g}" for one in found.numeric],
            "5%": [f"{one.quantiles.get('0.05', 0.0):.3g}" for one in found.numeric],
            "50%": [f"{one.quantiles.get('0.5', 0.0):.3g}" for one in found.numeric],
            "95%": [f"{one.quantiles.get('0.95', 0.0):.3g}" for one in found.numeric],
            "maximum": [f"{one.maximum:.3g}" for one in found.numeric],
        }
        if any(one.null_share for one in found.numeric):
            columns["null"] = [f"{one.null_share:.3f}" for one in found.numeric]
        print_table("", list(columns), zip(*columns.values(), strict=True))
    if save:
        note(f"Wrote {path / STATISTICS_FILE}")
