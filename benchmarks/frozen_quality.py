"""What does freezing a model cost in quality, and how small does it get?

    python benchmarks/frozen_quality.py --workdir /tmp/frozen --out benchmarks/results/frozen-quality.json

Trains the recipe criteo-dlrm on a generated Criteo-like stream whose rare ids matter (`data synth --tail`, 2
million rows, one pass), once with tables in memory, once adaptive at a sixteenth of their bytes, once with
rows on disk and once with three dynamic tables. Each run goes through `megalith export`, which compares the
frozen model with the trained one on 200,000 later rows. Prints changes of NE and AUC beside what is asked,
and bytes of tables beside the formula (dim * bits / 8 + overhead) / (4 * dim). Data and runs are kept;
the exit code is 1 where something asked does not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from megalith.bench.runner import result, save_result

RECIPE = "criteo-dlrm"
BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
SIZE_TOLERANCE = 0.005
DYNAMIC_TABLES = ("C3", "C12", "C21")
KINDS = ("dense", "adaptive", "tiered", "dynamic")
EXPORTS = (
    # Run, precision of tables and of the dense part, most that NE may rise, least share of the AUC.
    ("dense", "int8", "float32", 0.0002, None),
    ("dense", "int4", "float32", 0.0005, None),
    ("dense", "int8", "int8", 0.0005, 0.9995),
    ("adaptive", "int8", "float32", 0.0005, None),
    ("tiered", "int8", "float32", 0.0005, None),
    ("dynamic", "int8", "float32", 0.0005, None),
)


def main() -> None:
    """Trains and freezes what is not there yet, and prints what each costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workdir", type=Path, required=True, help="for data, runs and frozen models, reused"
    )
    parser.add_argument("--out", type=Path, help="also write the result to this JSON file")
    parser.add_argument("--rows", type=int, default=2_000_000, help="to train on")
    parser.add_argument("--test-rows", type=int, default=200_000, help="later ones, to compare on")
    parser.add_argument("--scale", default="0.1", help="ids of the stream: full, or a share of the real ones")
    parser.add_argument("--dim", type=int, default=64, help="columns of each table")
    parser.add_argument("--dram", default="256MiB", help="rows that the run on disk keeps in memory")
    parser.add_argument("--kinds", default=",".join(KINDS), help="runs to train, of " + ", ".join(KINDS))
    options = parser.parse_args()
    kinds = [kind.strip() for kind in options.kinds.split(",")]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kinds has no {', '.join(unknown)}; choose of {', '.join(KINDS)}")
    data = options.workdir / f"criteo-tail-{options.rows}-{options.test_rows}-{options.scale}"
    if not (data / "schema.json").exists():
        sizes = ["--rows", options.rows, "--valid-rows", 0, "--test-rows", options.test_rows]
        megalith("data", "synth", "criteo", "--tail", "--scale", options.scale, *sizes, "--out", data)
    found = []
    for kind, tables, dense, most, least_auc in EXPORTS:
        if kind in kinds:
            run = trained(options, data, kind)
            measured = frozen(options.workdir, run, kind, tables, dense)
            measured["asked"] = {"ne_loss": most, "auc_share": least_auc}
            measured["meets"] = meets(measured)
            show(measured)
            found.append(measured)
    settings = {
        "recipe": RECIPE,
        **{name: getattr(options, name) for name in ("rows", "test_rows", "scale", "dim")},
    }
    if options.out is not None:
        save_result(options.out, result("frozen-quality", settings, {"exports": found}, data))
    if not all(all(measured["meets"].values()) for measured in found):
        sys.exit(1)


def trained(options: argparse.Namespace, data: Path, kind: str) -> Path:
    """The run of a kind, trained if there is none that ended."""
    run: Path = options.workdir / f"run-{kind}-{data.name}-{options.dim}"
    if (run / "summary.json").exists():
        return run
    shutil.rmtree(run, ignore_errors=True)
    bound = max(1000, options.rows // 8)
    dynamic = ", ".join(f"{name}: {{kind: dynamic, bound: {bound}}}" for name in DYNAMIC_TABLES)
    own = {
        "dense": [],
        "adaptive": ["adaptive.ratio=16"],
        "tiered": [f"memory.dram={options.dram}"],
        "dynamic": [f"embeddings.stores={{{dynamic}}}"],
    }[kind]
    megalith(
        *("train", RECIPE, f"data.path={data}", "data.eval=test", f"model.dim={options.dim}"),
        *("train.eval_every=1000000", "train.checkpoint_every=1000000", "train.tensorboard=false"),
        *own,
        *("--out", run),
    )
    return run


def frozen(workdir: Path, run: Path, kind: str, tables: str, dense: str) -> dict[str, Any]:
    """A run through `megalith export`, which is to refuse nothing here: what it measures is judged below."""
    out = workdir / f"frozen-{run.name}-{tables}-{dense}"
    shutil.rmtree(out, ignore_errors=True)
    words = ["export", run, "--out", out, "--tables", tables, "--dense", dense, "--split", "test"]
    answer = json.loads(megalith(*words, "--budget", 1, "--json"))
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    gate = answer["gate"]
    return {
        "run": kind,
        "tables": tables,
        "dense": dense,
        "samples": gate["samples"],
        "trained_ne": gate["trained_ne"],
        "frozen_ne": gate["frozen_ne"],
        "ne_loss": gate["frozen_ne"] / gate["trained_ne"] - 1,
        "trained_auc": gate["trained_auc"],
        "frozen_auc": gate["frozen_auc"],
        "auc_share": gate["frozen_auc"] / gate["trained_auc"],
        "left_in_float32": answer["left_in_float32"],
        "bytes": answer["bytes"],
        "table_bytes": answer["table_bytes"],
        "float32_table_bytes": answer["float32_table_bytes"],
        "size_error": size_error(manifest["tables"]) if kind == "dense" else None,
    }


def size_error(tables: list[dict[str, Any]]) -> float:
    """Bytes of whole tables over what the formula says, as a share above 0 where they are more."""
    expected = 0.0
    for table in tables:
        overhead = {None: 0, "float16": 4, "float32": 8}[table["scale"]]
        row = table["dim"] * BITS[table["precision"]] / 8 + overhead
        expected += table["rows"] * row
    return sum(table["bytes"] for table in tables) / expected - 1


def meets(measured: dict[str, Any]) -> dict[str, bool]:
    """Which of what is asked holds."""
    asked = measured["asked"]
    held = {"ne": measured["ne_loss"] <= asked["ne_loss"]}
    if asked["auc_share"] is not None:
        held["auc"] = measured["auc_share"] >= asked["auc_share"]
    if measured["size_error"] is not None:
        held["size"] = abs(measured["size_error"]) <= SIZE_TOLERANCE
    return held


def show(measured: dict[str, Any]) -> None:
    """One line for people."""
    share = measured["table_bytes"] / measured["float32_table_bytes"]
    size = "" if measured["size_error"] is None else f" ({measured['size_error']:+.2%} of the formula)"
    missed = [name for name, held in measured["meets"].items() if not held]
    print(
        f"{measured['run']:9s} tables {measured['tables']}, dense {measured['dense']}: NE "
        f"{measured['trained_ne']:.6f} -> {measured['frozen_ne']:.6f} ({measured['ne_loss']:+.4%}, asked "
        f"{measured['asked']['ne_loss']:.2%}), AUC {measured['auc_share']:.4%} of "
        f"{measured['trained_auc']:.6f}, "
        f"tables {share:.1%} of float32{size}{'; misses ' + ', '.join(missed) if missed else ''}",
        flush=True,
    )


def megalith(*words: Any) -> str:
    """A command to its end; what it prints."""
    command = [sys.executable, "-m", "megalith", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
