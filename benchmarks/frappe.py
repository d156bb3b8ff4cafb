"""Frappe with real rows: test AUC of our recipes, and of FuxiCTR where it is installed.

    python benchmarks/frappe.py --data ../shared/data/frappe --seeds 3 --peer-python fuxictr-env/bin/python

Each recipe is trained twice a seed, by the commands that a user types: on 90% of the training rows, with the
AUC on the other 10% (settings were chosen on such cuts); and again on all training rows, all else equal.
The peer trains on the same 90% and stops early on the same 10%. Why so: docs/decisions/0004-frappe.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from megalith.bench.runner import result, run_process, save_result
from megalith.cli.output import print_json, print_table, progress_console
from megalith.core.errors import ConfigError, DataError, MegalithError, nearest

OUR_MODELS = ("dlrm", "dcnv2")
PEER_MODELS = ("dlrm", "dcnv2", "deepfm")
CUT, ALL = "90% of rows", "all rows"
_MEGALITH = (sys.executable, "-m", "megalith")
_PEER = Path(__file__).with_name("frappe_fuxictr.py")
_INSTALL = "python -m venv fuxictr-env && fuxictr-env/bin/pip install fuxictr torch"

Runs = dict[str, Any]


def say(message: str) -> None:
    """Prints progress on standard error."""
    progress_console.print(message, style="dim", highlight=False)


def megalith(*arguments: object) -> dict[str, Any]:
    """The JSON that one of our own commands prints."""
    content: dict[str, Any] = json.loads(run_process([*_MEGALITH, *map(str, arguments), "--json"]).stdout)
    return content


def prepare(data: Path, folder: Path) -> dict[str, Path]:
    """The data as our recipes read it: with a 10% cut for validation, and with every training row."""
    prepared = {CUT: folder / "cut", ALL: folder / "all"}
    for rows, out in prepared.items():
        source = ("libfm", data / "train.libfm", "--test", data / "test.libfm", "--min-count", 1)
        cut = ("--valid-fraction", 0.1) if rows == CUT else ()
        megalith("data", "prepare", *source, *cut, "--out", out)
    return prepared


def train(model: str, seed: int, rows: str, data: Path, run: Path) -> dict[str, Any]:
    """One run of a recipe, scored on the test rows at its last step."""
    settings = [f"data.path={data}", f"train.seed={seed}"]
    if rows == ALL:
        # There is no validation split, and nothing about the run may depend on the test rows.
        settings.append("train.eval_every=1000000")
    summary = megalith("train", f"frappe-{model}", *settings, "--out", run)
    test = megalith("eval", run, "--split", "test")
    valid_auc = summary["evaluation"]["auc"] if rows == CUT else None
    return {
        "seed": seed,
        "valid_auc": valid_auc,
        "test_auc": test["auc"],
        "test_log_loss": test["log_loss"],
        "seconds": summary["seconds"],
    }


def gather(runs: list[dict[str, Any]]) -> Runs:
    """The runs of one candidate over its seeds, with their means."""
    means = {"mean_test_auc": mean(run["test_auc"] for run in runs)}
    if runs[0]["valid_auc"] is not None:
        means["mean_valid_auc"] = mean(run["valid_auc"] for run in runs)
    return {**means, "runs": runs}


def measure_ours(models: list[str], seeds: int, data: Path, folder: Path) -> tuple[dict[str, Runs], Path]:
    """Results by candidate, and the folder of the cut for the peer to read."""
    prepared = prepare(data, folder)
    measured: dict[str, Runs] = {}
    for model in models:
        for rows, path in prepared.items():
            runs = []
            for seed in range(seeds):
                run = train(model, seed, rows, path, folder / f"{model}-{path.name}-{seed}")
                say(f"frappe-{model}, {rows}, seed {seed}: test AUC {run['test_auc']:.4f}")
                runs.append(run)
            measured[f"megalith {model}, {rows}"] = gather(runs)
    return measured, prepared[CUT]


def has_fuxictr(python: str) -> bool:
    """Whether that Python has FuxiCTR installed."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('fuxictr') is None)"
    try:
        return subprocess.run([python, "-c", look], check=False).returncode == 0
    except OSError as error:
        raise ConfigError(f"--peer-python {python} cannot be run; give the path of a Python.") from error


def measure_peer(python: str, models: list[str], seeds: int, prepared: Path) -> tuple[dict[str, Runs], Any]:
    """Results by candidate, and what the peer says of itself."""
    command = [
        python,
        str(_PEER),
        "--data",
        str(prepared),
        "--models",
        ",".join(models),
        "--seeds",
        str(seeds),
    ]
    runs: dict[str, list[dict[str, Any]]] = {}
    about: Any = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # Anything the peer's libraries print is not ours to read.
            entry = json.loads(line) if line.startswith("{") else {}
            if "versions" in entry:
                about = entry
            elif "model" in entry:
                say(f"FuxiCTR {entry['model']}, seed {entry['seed']}: test AUC {entry['test_auc']:.4f}")
                runs.setdefault(entry["model"], []).append(entry)
    if process.returncode:
        say(f"FuxiCTR ended with code {process.returncode}; its message is above; finished runs count.")
    return {f"FuxiCTR {model}, {CUT}": gather(found) for model, found in runs.items()}, about


def show(candidates: dict[str, Runs]) -> None:
    """Prints the candidates as a table."""
    rows = []
    for name, measured in candidates.items():
        each = " ".join(f"{run['test_auc']:.4f}" for run in measured["runs"])
        seconds = mean(run["seconds"] for run in measured["runs"])
        valid = f"{measured['mean_valid_auc']:.4f}" if "mean_valid_auc" in measured else ""
        rows.append([name, f"{measured['mean_test_auc']:.4f}", each, valid, f"{seconds:.0f}"])
    columns = ["", "test AUC", "each seed", "AUC on the 10%", "seconds to train"]
    print_table("Frappe, mean over seeds", columns, rows)


def choose(given: str, known: tuple[str, ...], option: str) -> list[str]:
    """The names of a comma-separated option, each checked."""
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: {nearest(name, known)}")
    return names


def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and scores all candidates."""
    models = choose(options.models, OUR_MODELS, "--models")
    peer_models = choose(options.peer_models, PEER_MODELS, "--peer-models")
    for name in ("train.libfm", "test.libfm"):
        if not (options.data / name).is_file():
            raise DataError(
                f"{options.data / name} is not there; give --data a folder with Frappe as libFM text."
            )
    peer = options.peer == "fuxictr" and has_fuxictr(options.peer_python)
    if options.peer == "fuxictr" and not peer:
        say(f"FuxiCTR is left out; install it with `{_INSTALL}`, pass --peer-python fuxictr-env/bin/python.")
    settings: dict[str, Any] = {"seeds": options.seeds, "recipes": [f"frappe-{model}" for model in models]}
    with tempfile.TemporaryDirectory() as folder:
        candidates, prepared = measure_ours(models, options.seeds, options.data, Path(folder))
        about: Any = {}
        if peer:
            theirs, about = measure_peer(options.peer_python, peer_models, options.seeds, prepared)
            candidates |= theirs
    content = result("frappe", settings, candidates, options.data)
    if about:
        content["settings"]["fuxictr"] = about["settings"]
        content["versions"]["fuxictr"] = about["versions"]["fuxictr"]
        content["versions"]["torch of fuxictr"] = about["versions"]["torch"]
    return content


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Test AUC on Frappe, ours beside FuxiCTR's.")
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of train.libfm and test.libfm")
    add("--seeds", type=int, default=3, help="runs of each candidate (default 3)")
    add("--models", default="dlrm", help="ours: dlrm, dcnv2, or both with a comma (default dlrm)")
    add("--peer", choices=("fuxictr", "none"), default="fuxictr", help="default fuxictr, where installed")
    add("--peer-python", default=sys.executable, help="a Python that has fuxictr (default: this one)")
    add("--peer-models", default="dlrm,dcnv2", help="of dlrm, dcnv2, deepfm (default dlrm,dcnv2)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--out", type=Path, help="also write the result to this JSON file")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    try:
        content = benchmark(options)
        if options.out:
            save_result(options.out, content)
    except MegalithError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print_json(content)
    else:
        show(content["results"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
