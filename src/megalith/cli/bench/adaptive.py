"""`megalith bench adaptive`: quality against bytes, of adaptive tables and of other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.bench.choices import Charge, QualityMetric
from megalith.cli.output import JsonFlag, note, print_json, print_table, say


def adaptive(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings laid over the recipe: a.b=c.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Prepared data [default: a generated stream, kept in --out].")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the generated stream.")] = 2_000_000,
    scale: Annotated[
        str, typer.Option(help="Ids of the generated stream: full, or a share of the real ones.")
    ] = "0.1",
    recipe: Annotated[str, typer.Option(help="Recipe to train.")] = "criteo-dlrm",
    methods: Annotated[str, typer.Option(help="Methods, as a,b [default: all].")] = "",
    ratios: Annotated[str, typer.Option(help="By how much all bytes shrink.")] = "4,16,64,400",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each method and ratio.")] = 3,
    tuning: Annotated[
        int, typer.Option(min=1, help="Settings tried of each method at one ratio; 1 tries none.")
    ] = 1,
    metric: Annotated[QualityMetric, typer.Option(help="What is compared.")] = QualityMetric.log_loss,
    charge: Annotated[
        Charge, typer.Option(help="What ratios count: every byte, or weights alone as published figures do.")
    ] = Charge.all,
    budget_minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no run after so many minutes; call again to go on.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads [default: torch's].")] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, result and picture.")] = Path("bench-adaptive"),
    as_json: JsonFlag = False,
) -> None:
    """Adaptive tables and nine other methods at equal bytes: quality, with every byte charged."""
    import torch

    from megalith.bench.adaptive.methods import choose_methods
    from megalith.bench.adaptive.stream import tail_stream
    from megalith.bench.adaptive.suite import GridSettings, bench_adaptive
    from megalith.bench.runner import save_result
    from megalith.report import write_bench_report
    from megalith.train.recipe import load_recipe

    if threads is not None:
        torch.set_num_threads(threads)
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    choose_methods(names)
    settings = GridSettings(
        names, _numbers(ratios), seeds, tuning, metric.value, budget_minutes, charge.value
    )
    folder = data if data is not None else tail_stream(out / "data", rows, scale, _say)
    loaded = load_recipe(recipe, [*(overrides or []), f"data.path={folder}"])
    content = bench_adaptive(loaded, settings, out, _say)
    save_result(out / "result.json", content)
    write_bench_report(out / "result.json", out / "report.html")
    if as_json:
        print_json(content)
        return
    show_adaptive(content["results"])
    say(f"Picture: {out / 'report.html'}")


def show_adaptive(results: dict[str, Any]) -> None:
    """A row for each method and ratio, and how each was tuned."""
    from megalith.core.units import format_bytes

    rows = []
    for row in results["rows"]:
        name, ratio = row["method"], f"{row['ratio']:g}x"
        if row["mean"] is None:
            status = "infeasible" if "infeasible" in row else "not run"
            rows.append([name, ratio, status, *[""] * 8])
            continue
        error, against = row["standard_error"], row["against_dense"]
        shown = f"{row['true_ratio']:.1f}x" + (" over budget" if row["over_budget"] else "")
        rows.append(
            [
                name,
                ratio,
                f"{row['mean']:.5f}",
                "" if error is None else f"{error:.5f}",
                "" if against is None else f"{against:+.5f}",
                _gain(row),
                format_bytes(round(row["bytes"])),
                shown,
                format_bytes(round(row["weight_bytes"])),
                f"{row['weight_ratio']:.1f}x" if "weight_ratio" in row else "",
                str(row["seeds"]),
            ]
        )
    columns = ["", "asked", results["metric"], "std error", "to dense", "adaptive is better by"]
    columns += ["all bytes", "is", "weights", "is", "seeds"]
    print_table("Quality against bytes", columns, rows)
    for row in results["rows"]:
        if "infeasible" in row:
            say(f"{row['method']} at {row['ratio']:g}x is infeasible: {row['infeasible']}")
    for name, about in results["tuning"].items():
        chosen = ", ".join(f"{key}={value}" for key, value in about["chosen"].items()) or "the recipe's"
        say(f"{name}: {about['runs']} tuning runs, settings {chosen}")
    if results["left"]:
        say(f"{results['left']} runs are left; call it again to go on.")


def _gain(row: dict[str, Any]) -> str:
    """By how much adaptive tables are better, over the same seeds."""
    gain, error = row.get("adaptive_gain"), row.get("adaptive_gain_error")
    if gain is None:
        return ""
    return f"{gain:+.5f}" + ("" if error is None else f" ± {error:.5f}")


def _numbers(text: str) -> tuple[float, ...]:
    from megalith.core.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"--ratios must be numbers such as 4,16,64, not '{text}'.") from error


def _say(message: str) -> None:
    note((message, "dim"))
