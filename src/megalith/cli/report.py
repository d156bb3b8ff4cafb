"""`megalith report`: a run, a saved benchmark or a sharding plan, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megalith.cli.output import JsonFlag, print_json, say


def report(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run, or a file that `megalith bench` or `plan --out` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write [default: RUN/report.html, or the result's name with .html]."),
    ] = None,
    chrome_trace: Annotated[
        Path | None,
        typer.Option(help="Also write the spans of all ranks here, for Perfetto or chrome://tracing."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Draw a run, a benchmark or a plan as one HTML file that opens offline."""
    from megalith.core.errors import ConfigError
    from megalith.core.trace import read_spans, to_chrome
    from megalith.core.units import format_bytes
    from megalith.report import write_bench_report, write_plan_report, write_report
    from megalith.train.run.folder import RunFolder

    is_result = run.is_file()
    target = out or (run.with_suffix(".html") if is_result else RunFolder(run).report)
    if is_result and chrome_trace is not None:
        raise ConfigError(f"--chrome-trace draws the spans of a run, and {run} is a file; name the run.")
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder; name a file, such as {target / 'report.html'}.")
    write_file = write_plan_report if is_result and _is_plan(run) else write_bench_report
    headline = (write_file if is_result else write_report)(run, target)
    if chrome_trace is not None:
        to_chrome(read_spans(RunFolder(run).traces()), chrome_trace)
    size = target.stat().st_size
    if json:
        print_json({"run": str(run), "out": str(target), "bytes": size, **headline})
        return
    say(f"Wrote {target} ({format_bytes(size)}); open it in a browser.")


def _is_plan(path: Path) -> bool:
    """Whether a file is a sharding plan; what is neither that nor a benchmark, the benchmark refuses."""
    from megalith.core.errors import MegalithError
    from megalith.core.files import read_json_object

    try:
        return "placements" in read_json_object(path, fix="")
    except MegalithError:
        return False
