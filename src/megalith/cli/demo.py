"""`megalith demo`: the whole journey on generated data.

Every step is a command that a user could type; the demo shows it, then runs that very line through the same
command line with `--json`, so what is printed is what happened.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.output import JsonFlag, note, print_json
from megalith.cli.output import say as print_line

MARKER = "demo.json"
_MADE = ("data", "run", "report.html", MARKER)

Result = dict[str, Any]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=10_000, help="Rows to train on.")] = 2_000_000,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Use the folder even if no demo made it.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """The whole journey on generated data, in minutes."""
    from time import perf_counter

    from megalith.core.errors import StorageError
    from megalith.core.files import write_atomic

    others = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if others and MARKER not in others and not overwrite:
        raise StorageError(
            f"{out} exists and no demo made it; choose another --out, or pass --overwrite to replace "
            f"{', '.join(_MADE[:-1])} in it."
        )
    say: Callable[..., None] = (lambda *parts: None) if json_output else print_line
    began = perf_counter()
    data, run, page = out / "data", out / "run", out / "report.html"
    # The marker goes first: a demo that was stopped half-way may be started again.
    write_atomic(out / MARKER, json.dumps({"rows": rows}) + "\n")
    results: Result = {}
    for name, command, sentence in (
        ("synth", ["data", "synth", "criteo", "--rows", rows, "--out", data, "--overwrite"], _synth),
        ("stats", ["data", "stats", data, "--save"], _stats),
        ("train", ["train", "demo", f"data.path={data}", "--out", run, "--overwrite"], _train),
        ("eval", ["eval", run, "--split", "test"], _eval),
        ("report", ["report", run, "--out", page], _report),
    ):
        words = [str(word) for word in command]
        say((f"\n$ megalith {shlex.join(words)}", "bold"))
        start = perf_counter()
        results[name] = _run(words)
        if name == "train" and not results[name]["finished"]:
            note(f"Stopped; start again with: megalith demo --out {shlex.quote(str(out))}")
            raise typer.Exit(130)
        seconds = perf_counter() - start
        say("  ", ("✓", "green"), f" {sentence(results[name])} ", (f"({seconds:.1f} s)", "dim"))
    seconds = perf_counter() - began
    scored = results["eval"]
    if json_output:
        print_json({"out": str(out), "report": str(page), "seconds": seconds, "steps": results})
        return
    say(
        f"\nIn {seconds:.0f} s the model reached NE {scored['ne']:.4f} on rows it never saw. "
        f"The best possible on this data is {scored['best_ne']:.4f}: "
        f"{100 * scored['above_best']:.1f}% above it."
    )
    say("Report: ", (str(page), "bold"), " (open it in a browser)\n\nWhat to try next:")
    for line, why in (
        (
            f"megalith train demo {shlex.quote(f'data.path={data}')} 'model={{kind: dcnv2, dim: 8}}' "
            f"--out {shlex.quote(str(out / 'dcnv2'))}",
            "DCN-v2",
        ),
        (f"tensorboard --logdir {shlex.quote(str(out))}", "runs side by side"),
        ("megalith data prepare --help", "your own clicks: Criteo, Avazu, libFM, Parquet"),
    ):
        say(f"  {line}  ", (f"# {why}", "dim"))


def _run(words: Sequence[str]) -> Result:
    """One command in this process; what it would print as JSON."""
    from megalith.cli.app import app

    printed = StringIO()
    with redirect_stdout(printed):
        app([*words, "--json"], standalone_mode=False)
    found: Result = json.loads(printed.getvalue())
    return found


def _synth(found: Result) -> str:
    rows = sum(split["rows"] for split in found["splits"].values())
    best = found["splits"]["test"]["best_ne"]
    return f"{rows:,} rows shaped like Criteo's; no model can go below NE {best:.4f} on the test split"


def _stats(found: Result) -> str:
    from megalith.core.units import format_count

    features = found["features"]
    ids = sum(one["num_ids"] for one in features)
    once = sum(one["distinct_ids"] * one["seen_once_share"] for one in features)
    seen = sum(one["distinct_ids"] for one in features)
    return (
        f"click rate {found['click_rate']:.4f}; {len(features)} features with {format_count(ids)} ids; "
        f"{once / max(seen, 1):.0%} of those seen occur once"
    )


def _train(found: Result) -> str:
    from megalith.core.units import format_bytes, format_count

    line = (
        f"{found['step']:,} steps, {format_count(found['samples_per_second'])} samples/s; "
        f"{found['tables']} tables of {format_bytes(found['table_bytes'])}"
    )
    if "evaluation" in found:
        line += f"; valid NE {found['evaluation']['ne']:.4f}"
    return line


def _eval(found: Result) -> str:
    return (
        f"test NE {found['ne']:.4f} (best possible {found['best_ne']:.4f}), AUC {found['auc']:.4f}, "
        f"calibration {found['calibration']:.3f}"
    )


def _report(found: Result) -> str:
    from megalith.core.units import format_bytes

    return f"{found['out']}, {format_bytes(found['bytes'])}, opens without a network"
