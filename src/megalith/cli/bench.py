"""`megalith bench data`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.output import JsonFlag, print_json, print_table, progress_console

bench = typer.Typer(
    help="Measure this machine, beside the tools one would use instead.", no_args_is_help=True
)

OutOption = Annotated[Path | None, typer.Option("--out", help="Also write the result to this JSON file.")]


class Part(StrEnum):
    prepare = "prepare"
    loader = "loader"


@bench.command()
def data(
    rows: Annotated[int, typer.Option(min=1, help="Rows of generated Criteo text.")] = 10_000_000,
    only: Annotated[Part | None, typer.Option(help="Measure one part alone.")] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Folder for the data, kept and reused [default: the system's temporary]."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of the loaders.")] = 5,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rows prepared and samples loaded a second, beside polars and pyarrow."""
    import tempfile

    from megalith.bench.data import bench_data
    from megalith.bench.runner import save_result

    folder = workdir or Path(tempfile.gettempdir()) / "megalith-bench"

    def say(message: str) -> None:
        progress_console.print(message, style="dim", highlight=False)

    content = bench_data(rows, folder, only.value if only else None, repeats, say)
    if out is not None:
        save_result(out, content)
    if as_json:
        print_json(content)
    else:
        _show(content["results"])


def _show(results: dict[str, Any]) -> None:
    import statistics

    from megalith.core.units import format_bytes, format_count

    if "generate" in results:
        text = results["generate"]
        how = "reused" if text["reused"] else f"generated in {text['seconds']:.0f} s"
        typer.echo(f"{text['rows']:,} rows of text, {format_bytes(text['bytes'])}, {how}")
    if "prepare" in results:
        prepare = results["prepare"]
        rows = []
        for name, measured in prepare.items():
            if not isinstance(measured, dict):
                continue
            if "failed" in measured:
                rows.append([name, "failed", "", "", ""])
            else:
                rate, memory = measured["rows_per_second"], measured["max_resident_bytes"]
                times = [f"{measured['seconds']:.1f}", f"{measured['cpu_seconds']:.1f}"]
                rows.append([name, format_count(rate), *times, format_bytes(memory)])
        print_table("Prepare", ["", "rows/s", "seconds", "cpu seconds", "peak memory"], rows)
        if "speed_ratio" in prepare:
            typer.echo(
                f"{prepare['speed_ratio']:.2f} times the rows/s of polars ({prepare['cpu_ratio']:.2f} by "
                f"processor time) in {prepare['memory_ratio']:.2f} times its memory"
            )
    if "loader" in results:
        loader = results["loader"]
        ratios = loader["speed_ratio_to_pyarrow"]
        rows = [
            [
                name,
                format_count(measured["samples_per_second"]),
                f"{measured['spread']:.0%}",
                f"{1e6 * statistics.median(measured['cpu_seconds']) / loader['samples_a_round']:.2f}",
                f"{ratios[name]:.2f}" if name in ratios else "",
            ]
            for name, measured in loader["candidates"].items()
        ]
        print_table(
            "Load (cpu us: processor time of one sample)",
            ["", "samples/s", "spread", "cpu us", "x pyarrow"],
            rows,
        )
