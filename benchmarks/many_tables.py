"""A model of several hundred tables of mixed dims: how much smaller without loss?

    python benchmarks/many_tables.py --workdir DIR --out benchmarks/results/many-tables.json

The shape is industry's, not a public set's: tables of a hundred rows to a hundred thousand, as many of each
size, with 8 to 64 columns that a layer brings to one dim. Dense tables and adaptive ones see the same samples
in the same order. Every run that ends is kept in `--workdir`; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path
from typing import Any

import torch

from megalith.bench.adaptive.methods import METHODS
from megalith.bench.adaptive.runs import RunPoint, run_point
from megalith.bench.adaptive.suite import RunLog
from megalith.bench.adaptive.summary import quality
from megalith.bench.runner import result, save_result
from megalith.cli.output import print_table, progress_console
from megalith.data.dataset import Dataset
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.tables import TableShapes
from megalith.train.recipe import Recipe, load_recipe

FEWEST, MOST = 100, 100_000
DIMS = (8, 16, 32, 64)
CHUNK = 4
RATIOS = (3.0, 4.0, 8.0)
"""3 is 66.7% smaller."""


def table_rows(tables: int) -> tuple[int, ...]:
    """Rows of each table: evenly spread over the orders of magnitude, in an order of no meaning."""
    rows = [round(FEWEST * (MOST / FEWEST) ** (place / max(1, tables - 1))) for place in range(tables)]
    random.Random(0).shuffle(rows)
    return tuple(rows)


def make_data(folder: Path, tables: int, samples: int) -> Path:
    """The generated data set, kept from one call to the next."""
    target = folder / f"data-{tables}-{samples}"
    if not target.exists():
        shapes = TableShapes(table_rows(tables), (1,) * tables, numbers=13)
        options = SynthOptions("tables", samples, samples // 10, samples // 10, tables=shapes)
        options.check()
        generate(options, target)
    return target


def make_recipe(data: Path, tables: int, batch: int) -> Recipe:
    """A cross network of low rank beside an MLP, over the vectors of all tables."""
    dims = {f"t{place}": DIMS[place % len(DIMS)] for place in range(tables)}
    settings = {
        "data.path": data,
        "data.batch_size": batch,
        "model.dim": 16,
        "model.dims": "{" + ", ".join(f"{name}: {dim}" for name, dim in dims.items()) + "}",
        "train.epochs": 1,
    }
    return load_recipe("criteo-dcnv2", [f"{name}={value}" for name, value in settings.items()])


def main() -> None:
    """Runs what is missing and prints all of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workdir", type=Path, required=True, help="keeps the data and every run that ended")
    add("--out", type=Path, required=True, help="result file")
    add("--tables", type=int, default=300)
    add("--samples", type=int, default=400_000)
    add("--batch", type=int, default=512)
    add("--seeds", type=int, default=3)
    add("--ratios", type=float, nargs="+", default=list(RATIOS))
    add("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)

    data = make_data(given.workdir, given.tables, given.samples)
    recipe, dataset = make_recipe(data, given.tables, given.batch), Dataset(data)
    log = RunLog(given.workdir / f"runs-{given.tables}-{given.samples}-{given.batch}", recipe, dataset)
    variants: list[tuple[str, float, dict[str, Any]]] = [("none", 1.0, {})]
    variants += [("adaptive", ratio, {"chunk": CHUNK}) for ratio in given.ratios]
    rows: list[dict[str, Any]] = []
    for method, ratio, settings in variants:
        records = []
        for seed in range(given.seeds):
            point = RunPoint(METHODS[method], settings, ratio, seed)
            record = log.find(point)
            if record is None:
                progress_console.print(f"{method} {ratio:g}x, seed {seed}", style="dim", highlight=False)
                record = run_point(recipe, dataset, point)
                log.add(point, record)
            records.append(record)
        losses = [quality(record, "log_loss", "test") for record in records]
        total = statistics.fmean(record["bytes"]["total"] for record in records)
        row: dict[str, Any] = {"method": method, "ratio": ratio, "test_log_loss": losses, "bytes": total}
        rows.append(row | {"smaller": 1 - total / records[0]["dense_bytes"]})

    dense = rows[0]["test_log_loss"]
    lines = []
    for row in rows:
        row["against_dense"] = [own / base - 1 for own, base in zip(row["test_log_loss"], dense, strict=True)]
        lines.append(
            [
                f"{row['method']} {row['ratio']:g}x",
                f"{row['smaller']:.1%}",
                f"{statistics.fmean(row['test_log_loss']):.5f}",
                " ".join(f"{loss:+.3%}" for loss in row["against_dense"]),
            ]
        )
    columns = ["tables", "smaller, all bytes", "test log loss", "against dense, by seed"]
    print_table(f"{given.tables} tables of mixed dims", columns, lines)
    about = {name: getattr(given, name) for name in ("tables", "samples", "batch", "seeds")}
    save_result(given.out, result("many-tables", about, {"rows": rows}, given.workdir))


if __name__ == "__main__":
    main()
