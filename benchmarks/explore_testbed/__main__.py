"""Real training steps between two emulated buildings, and what the Explorer predicts for them.

    sudo .venv/bin/python benchmarks/explore_testbed [--only TEXT] [--steps 3] [--json] [--out FILE]

README.md says what it shows and how to read it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from buildings import missing
from comparing import run
from settings import SETTINGS, SHAPE, Setting

from megalith.bench.runner import result, save_result
from megalith.cli.output import print_json, print_table
from megalith.core.errors import ConfigError, MegalithError

LOCK = Path("/run/megalith-testbed.lock")
LIMIT = 0.15
"""Predicted within this share of measured."""


@contextmanager
def only_one_testbed() -> Iterator[None]:
    """Two at a time would remove each other's namespaces."""
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "Another testbed is running on this machine; wait until it has ended."
            ) from None
        yield


def choose(wanted: Sequence[str]) -> list[Setting]:
    """Settings whose name holds one of the texts; all when there is none."""
    chosen = [one for one in SETTINGS if not wanted or any(text in one.name for text in wanted)]
    if not chosen:
        names = "; ".join(setting.name for setting in SETTINGS)
        raise ConfigError(f"--only {wanted[0]} is in no setting's name; there are: {names}.")
    return chosen


def earlier_rows(path: Path, again: Sequence[Setting]) -> dict[str, Any]:
    """Rows of an earlier result whose settings are still the same and are not run again."""
    if not path.exists():
        return {}
    names = {setting.name for setting in again}
    known = {setting.name: setting.to_dict() for setting in SETTINGS if setting.name not in names}
    rows = json.loads(path.read_text())["results"]
    return {name: row for name, row in rows.items() if row["setting"] == known.get(name)}


def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the chosen settings and sums up the errors of the predictions."""
    settings = choose(options.only)
    if (reason := missing()) is not None:
        raise ConfigError(reason)
    with only_one_testbed():
        rows, link = run(settings, options.steps)
    if options.add:
        rows = earlier_rows(options.out, settings) | rows
        rows = {setting.name: rows[setting.name] for setting in SETTINGS if setting.name in rows}
    errors = [abs(row["error"]) for row in rows.values()]
    content = result("explore-testbed", {"model": SHAPE, "steps": options.steps, "link": link}, rows, None)
    content["summary"] = {
        "settings": len(rows),
        "within_15_percent": sum(error <= LIMIT for error in errors),
        "mean_absolute_error": sum(errors) / len(errors),
        "worst_absolute_error": max(errors),
    }
    return content


def show(content: dict[str, Any]) -> None:
    """Prints the settings as a table."""
    cells = []
    for name, row in content["results"].items():
        setting = row["setting"]
        cells.append(
            [
                name + (" *" if setting["waiting"] else ""),
                f"{setting['delay_seconds'] * 1e3:g} ms",
                f"{setting['bits_per_second'] / 1e6:g} Mb/s",
                setting["pp"] * setting["dp"],
                f"{row['predicted_seconds']:.3f} s",
                f"{row['measured_seconds']:.3f} s",
                f"{row['spread']:.1%}",
                f"{row['error']:+.1%}",
            ]
        )
    columns = ["setting", "delay", "rate", "ranks", "predicted", "measured", "spread", "error"]
    print_table(f"Two buildings ({content['settings']['link']})", columns, cells)
    summary = content["summary"]
    print("* ranks wait as long as their operations take: there are more ranks than cores.")
    print(
        f"{summary['within_15_percent']} of {summary['settings']} settings within {LIMIT:.0%}; mean error "
        f"{summary['mean_absolute_error']:.1%}, worst {summary['worst_absolute_error']:.1%}."
    )


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description="Steps between two emulated buildings, predicted and measured."
    )
    add = parser.add_argument
    add("--only", action="append", default=[], help="settings whose name holds this text; may be repeated")
    add("--steps", type=int, default=3, help="steps measured in each of 3 rounds of a setting (default 3)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--out", type=Path, help="also write the result to this JSON file")
    add("--add", action="store_true", help="keep rows of other settings that --out already has")
    options = parser.parse_args()
    if options.add and not options.out:
        parser.error("--add needs --out")
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    # A polite kill takes the same way out as Ctrl-C: through every `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        content = benchmark(options)
        if options.out:
            save_result(options.out, content)
    except MegalithError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print_json(content)
    else:
        show(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
