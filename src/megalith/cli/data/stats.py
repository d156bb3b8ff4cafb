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
        statistics = measure(path, split, lambda column: update(f"Measuring {column}"))
    if save:
        write_statistics(path, statistics)
    if json:
        print_json(statistics.model_dump(mode="json"))
        return
    best = "" if statistics.best_log_loss is None else f", best log loss {statistics.best_log_loss:.5f}"
    title = f"{path}, {split}: {statistics.rows:,} rows, click rate {statistics.click_rate:.4f}{best}"
    columns: dict[str, list[str]] = {
        "feature": [feature.name for feature in statistics.features],
        "ids": [
            "raw" if feature.num_ids is None else format_count(feature.num_ids)
            for feature in statistics.features
        ],
        "seen": [format_count(feature.distinct_ids) for feature in statistics.features],
        "missing": [f"{feature.missing_share:.3f}" for feature in statistics.features],
        "top 1": [f"{feature.top_1_share:.3f}" for feature in statistics.features],
        "10": [f"{feature.top_10_share:.3f}" for feature in statistics.features],
        "100": [f"{feature.top_100_share:.3f}" for feature in statistics.features],
        "once": [f"{feature.seen_once_share:.3f}" for feature in statistics.features],
        "skew": ["" if feature.skew is None else f"{feature.skew:.2f}" for feature in statistics.features],
    }
    # A column that most data sets do not need appears only where it says something; 80 characters are few.
    if any(feature.unknown_share for feature in statistics.features):
        columns["unknown"] = [f"{feature.unknown_share:.3f}" for feature in statistics.features]
        if console.is_terminal and console.width < 90:
            del columns["skew"]
    print_table(title, list(columns), zip(*columns.values(), strict=True))
    bags = [feature for feature in statistics.features if feature.max_length > 1]
    if bags:
        lengths = (
            (bag.name, f"{bag.mean_length:.2f}", bag.max_length, f"{bag.empty_share:.3f}") for bag in bags
        )
        print_table("", ("multi-hot", "mean length", "longest", "empty"), lengths)
    if statistics.numeric:
        columns = {
            "number": [number.name for number in statistics.numeric],
            "zero": [f"{number.zero_share:.3f}" for number in statistics.numeric],
            "mean": [f"{number.mean:.3g}" for number in statistics.numeric],
            "spread": [f"{number.deviation:.3g}" for number in statistics.numeric],
            "5%": [f"{number.quantiles.get('0.05', 0.0):.3g}" for number in statistics.numeric],
            "50%": [f"{number.quantiles.get('0.5', 0.0):.3g}" for number in statistics.numeric],
            "95%": [f"{number.quantiles.get('0.95', 0.0):.3g}" for number in statistics.numeric],
            "maximum": [f"{number.maximum:.3g}" for number in statistics.numeric],
        }
        if any(number.null_share for number in statistics.numeric):
            columns["null"] = [f"{number.null_share:.3f}" for number in statistics.numeric]
        print_table("", list(columns), zip(*columns.values(), strict=True))
    if save:
        note(f"Wrote {path / STATISTICS_FILE}")
