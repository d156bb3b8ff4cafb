"""`megalith demo`: the whole journey on generated data.

Every step is a command that a user could type; the demo shows it, then runs that very line through the same
command line with `--json`, so what is printed is what happened.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.demo.full import MADE, Command, full_steps, load_step, served
from megalith.cli.output import JsonFlag, note, print_json
from megalith.cli.output import say as print_line

MARKER = "demo.json"
ROWS, FULL_ROWS = 2_000_000, 1_000_000
_MADE = ("data", "run", "report.html", *MADE, MARKER)

Result = dict[str, Any]
Say = Callable[..., None]
Step = tuple[str, float, str]
"""A command, its seconds, what came of it."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
    rows: Annotated[
        int | None,
        typer.Option(min=10_000, help="Rows to train on [default: 2,000,000, half of them with --full]."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Also train with a tenth of the memory and with tables sixteen times smaller, freeze and "
            "serve the small ones; one page of all.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Use the folder even if no demo made it.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """The whole journey on generated data, in minutes."""
    from time import perf_counter

    from megalith.core.files import write_atomic

    rows = rows or (FULL_ROWS if full else ROWS)
    _check_folder(out, overwrite)
    say: Say = (lambda *parts: None) if json_output else print_line
    began = perf_counter()
    # The marker goes first: a demo that was stopped half-way may be started again.
    write_atomic(out / MARKER, json.dumps({"rows": rows}) + "\n")
    results: dict[str, Any] = {}
    page = out / "report.html"
    steps = _run_steps(_first_steps(out, rows), results, out, say)
    if full:
        steps += _run_steps(full_steps(out, results), results, out, say)
        with served(out / "models") as (command, url):
            say((f"\n$ megalith {command}", "bold"))
            steps += _run_steps([load_step(url)], results, out, say)
        _write_journey(page, out, steps, results)
    else:
        words = ["report", str(out / "run"), "--out", str(page)]
        steps += _run_steps([("report", words, _report)], results, out, say)
    seconds = perf_counter() - began
    if json_output:
        print_json({"out": str(out), "report": str(page), "seconds": seconds, "steps": results})
        return
    scores = results["eval"]
    say(
        f"\nIn {seconds:.0f} s the model reached NE {scores['ne']:.4f} on rows it never saw. "
        f"The best possible on this data is {scores['best_ne']:.4f}: "
        f"{100 * scores['above_best']:.1f}% above it."
    )
    say("Report: ", (str(page), "bold"), " (open it in a browser)\n\nWhat to try next:")
    for line, why in _next_commands(out):
        say(f"  {line}  ", (f"# {why}", "dim"))


def _check_folder(out: Path, overwrite: bool) -> None:
    """Refuses a folder with files of someone else's."""
    from megalith.core.errors import StorageError

    others = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if others and MARKER not in others and not overwrite:
        raise StorageError(
            f"{out} exists and no demo made it; choose another --out, or pass --overwrite to replace "
            f"{', '.join(_MADE[:-1])} in it."
        )


def _first_steps(out: Path, rows: int) -> list[Command]:
    """Data, a model, how good it is."""
    data, run = str(out / "data"), str(out / "run")
    return [
        ("synth", ["data", "synth", "criteo", "--rows", str(rows), "--out", data, "--overwrite"], _synth),
        ("stats", ["data", "stats", data, "--save"], _stats),
        ("train", ["train", "demo", f"data.path={data}", "--out", run, "--overwrite"], _train),
        ("eval", ["eval", run, "--split", "test"], _eval),
    ]


def _run_steps(commands: Iterable[Command], results: Result, out: Path, say: Say) -> list[Step]:
    """Every command in turn, shown before and summed up after it ran; what each gave goes to `results`."""
    from time import perf_counter

    steps = []
    for name, words, sentence in commands:
        say((f"\n$ megalith {shlex.join(words)}", "bold"))
        start = perf_counter()
        results[name] = _run(words)
        if not results[name].get("finished", True):
            note(f"Stopped; start again with: megalith demo --out {shlex.quote(str(out))}")
            raise typer.Exit(130)
        seconds, found = perf_counter() - start, sentence(results[name])
        steps.append((shlex.join(words), seconds, found))
        say("  ", ("✓", "green"), f" {found} ", (f"({seconds:.1f} s)", "dim"))
    return steps


def _write_journey(page: Path, out: Path, steps: Sequence[Step], results: Result) -> None:
    from megalith.core.units import format_bytes
    from megalith.report.compare.journey import JourneyStep, write_journey

    whole, small = results["eval"], results["eval-small"]
    tiers, adaptive = results["train-disk"]["tiers"], results["train-small"]["adaptive"]
    same = "the same bits as in memory" if results["eval-disk"]["ne"] == whole["ne"] else "not that in memory"
    tiles = [
        ("NE on rows never seen", f"{whole['ne']:.4f}", f"best possible {whole['best_ne']:.4f}"),
        ("NE with rows on disk", f"{results['eval-disk']['ne']:.4f}", same),
        (
            "Rows kept in memory",
            format_bytes(tiers["memory_bytes"]),
            f"{tiers['hit_rate']:.1%} of lookups hit",
        ),
        ("Tables smaller", f"{adaptive['ratio']:.1f}x", "while they train, all bytes counted"),
        ("NE with small tables", f"{small['ne']:.4f}", f"{100 * (small['ne'] / whole['ne'] - 1):+.2f}%"),
        ("Frozen, on disk", format_bytes(results["export"]["bytes"]), "tables of int8"),
        ("Requests answered", f"{results['loadtest']['answers']:,}", "of 64 samples each, in 5 s"),
        (
            "Median answer",
            f"{1e3 * results['loadtest']['latency_seconds']['p50']:.1f} ms",
            f"p99 {1e3 * results['loadtest']['latency_seconds']['p99']:.1f} ms",
        ),
    ]
    runs = [out / name for name in ("run", "disk", "small")]
    write_journey(page, [JourneyStep(*step) for step in steps], runs, tiles)


def _next_commands(out: Path) -> tuple[tuple[str, str], ...]:
    data = shlex.quote(f"data.path={out / 'data'}")
    return (
        (
            f"megalith train demo {data} 'model={{kind: dcnv2, dim: 8}}' "
            f"--out {shlex.quote(str(out / 'dcnv2'))}",
            "DCN-v2",
        ),
        (f"tensorboard --logdir {shlex.quote(str(out))}", "runs side by side"),
        ("megalith data prepare --help", "your own clicks: Criteo, Avazu, libFM, Parquet"),
    )


def _run(words: Sequence[str]) -> Result:
    """One command in this process; what it would print as JSON."""
    from megalith.cli.app import app

    printed = StringIO()
    with redirect_stdout(printed):
        app([*words, "--json"], standalone_mode=False)
    result: Result = json.loads(printed.getvalue())
    return result


def _synth(result: Result) -> str:
    rows = sum(split["rows"] for split in result["splits"].values())
    best = result["splits"]["test"]["best_ne"]
    return f"{rows:,} rows shaped like Criteo's; no model can go below NE {best:.4f} on the test split"


def _stats(result: Result) -> str:
    from megalith.core.units import format_count

    features = result["features"]
    ids = sum(feature["num_ids"] for feature in features)
    once = sum(feature["distinct_ids"] * feature["seen_once_share"] for feature in features)
    seen = sum(feature["distinct_ids"] for feature in features)
    return (
        f"click rate {result['click_rate']:.4f}; {len(features)} features with {format_count(ids)} ids; "
        f"{once / max(seen, 1):.0%} of those seen occur once"
    )


def _train(result: Result) -> str:
    from megalith.core.units import format_bytes, format_count

    line = (
        f"{result['step']:,} steps, {format_count(result['samples_per_second'])} samples/s; "
        f"{result['tables']} tables of {format_bytes(result['table_bytes'])}"
    )
    if "evaluation" in result:
        line += f"; valid NE {result['evaluation']['ne']:.4f}"
    return line


def _eval(result: Result) -> str:
    return (
        f"test NE {result['ne']:.4f} (best possible {result['best_ne']:.4f}), AUC {result['auc']:.4f}, "
        f"calibration {result['calibration']:.3f}"
    )


def _report(result: Result) -> str:
    from megalith.core.units import format_bytes

    return f"{result['out']}, {format_bytes(result['bytes'])}, opens without a network"
