"""`megalith report`: runs, a saved benchmark or a sharding plan, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.output import JsonFlag, print_json, say

COMPARISON = Path("compare.html")
"""Where several runs are compared, unless told otherwise."""


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run or of an exported model, or a file that `megalith bench` or `plan --out` "
            "wrote; several runs are compared on one page.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write [default: RUN/report.html, the result's name with .html, or compare.html "
            "for several runs]."
        ),
    ] = None,
    chrome_trace: Annotated[
        Path | None,
        typer.Option(help="Also write the spans of all ranks here, for Perfetto or chrome://tracing."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Draw a run, a benchmark or a plan as one HTML file that opens offline, or compare several runs."""
    from megalith.core.errors import ConfigError
    from megalith.core.units import format_bytes

    target = out or _default_target(runs)
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder; name a file, such as {target / 'report.html'}.")
    if len(runs) > 1:
        printed = _compare(runs, target, chrome_trace)
    else:
        printed = _draw(runs[0], target, chrome_trace)
    size = target.stat().st_size
    if json:
        print_json({**printed, "out": str(target), "bytes": size})
        return
    say(f"Wrote {target} ({format_bytes(size)}); open it in a browser.")


def _default_target(runs: list[Path]) -> Path:
    from megalith.train.run.folder import RunFolder

    if len(runs) > 1:
        return COMPARISON
    if runs[0].is_file():
        return runs[0].with_suffix(".html")
    if _is_model(runs[0]):
        # Beside it: all files within are listed.
        return runs[0].parent / f"{runs[0].name}.html"
    return RunFolder(runs[0]).report


def _compare(runs: list[Path], target: Path, chrome_trace: Path | None) -> dict[str, Any]:
    from megalith.core.errors import ConfigError
    from megalith.report import write_comparison

    for run in runs:
        if run.is_file():
            raise ConfigError(f"{run} is a file; folders of runs are compared, files are drawn one by one.")
    if chrome_trace is not None:
        raise ConfigError(f"--chrome-trace draws the spans of one run, and {len(runs)} are named; name one.")
    return write_comparison(runs, target)


def _draw(run: Path, target: Path, chrome_trace: Path | None) -> dict[str, Any]:
    from megalith.core.errors import ConfigError
    from megalith.core.trace import read_spans, to_chrome
    from megalith.report import (
        write_bench_report,
        write_model_report,
        write_plan_report,
        write_report,
    )
    from megalith.train.run.folder import RunFolder

    is_result = run.is_file()
    if is_result and chrome_trace is not None:
        raise ConfigError(f"--chrome-trace draws the spans of a run, and {run} is a file; name the run.")
    if not is_result and _is_model(run):
        if chrome_trace is not None:
            raise ConfigError(f"--chrome-trace draws the spans of a run, and {run} is a model; name the run.")
        return {"model": str(run), **write_model_report(run, target)}
    write_file = write_plan_report if is_result and _is_plan(run) else write_bench_report
    headline = (write_file if is_result else write_report)(run, target)
    if chrome_trace is not None:
        to_chrome(read_spans(RunFolder(run).traces()), chrome_trace)
    return {"run": str(run), **headline}


def _is_model(path: Path) -> bool:
    from megalith.export.folder import is_model

    return is_model(path)


def _is_plan(path: Path) -> bool:
    """Whether a file is a sharding plan; what is neither that nor a benchmark, the benchmark refuses."""
    from megalith.core.errors import MegalithError
    from megalith.core.files import read_json_object

    try:
        return "placements" in read_json_object(path, fix="")
    except MegalithError:
        return False
