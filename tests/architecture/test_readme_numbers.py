"""Figures of the README are those of benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def results(name: str) -> Any:
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))["results"]


def milliseconds(name: str, *candidates: str) -> list[str]:
    found = results(name)["candidates"]
    return [f"{1e3 * found[candidate]['median_seconds']:.0f} ms" for candidate in candidates]


def hosts(codec: str) -> str:
    [row] = [row for row in results("two-hosts")["rows"] if (row["gigabits"], row["codec"]) == (1.0, codec)]
    return f"{1e3 * row['median_seconds']:.0f} ms"


def prepared() -> list[str]:
    found = results("data")["prepare"]
    rates = [found[name]["rows_per_second"] for name in ("megalith data prepare", "polars")]
    return [f"{round(rate, -3):,.0f}" for rate in rates]


def recovery() -> list[str]:
    found = results("drift")["recovery"]
    return [
        f"| {found['adaptive']['recovered_after_steps']} |",
        f": {found['none']['recovered_after_steps']} |",
    ]


def waits() -> list[str]:
    shares = {row["engine"]: row["wait_share"] for row in results("reader-wait")["rows"]}
    return [f"{shares['ray']:.2%} with Ray", f"{shares['local']:.2%} with a thread"]


FIGURES = {
    "Share of a step that waits for data": waits,
    "Criteo text prepared": prepared,
    "DLRM training step": lambda: milliseconds("train", "megalith", "torchrec"),
    "The same on two processes": lambda: milliseconds("train-2-ranks", "megalith", "torchrec"),
    "The same with 20 lookups": lambda: milliseconds("train-20-lookups", "megalith", "torchrec", "torch"),
    "The same on two hosts": lambda: [hosts("fp32"), hosts("int8")],
    "Steps until the loss has recovered": recovery,
}


@pytest.mark.parametrize("row", FIGURES)
def test_a_row_of_the_readme_has_the_measured_figures(row: str) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"| {row}")]
    for figure in FIGURES[row]():
        assert figure in line
