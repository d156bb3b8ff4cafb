"""`megalith report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megalith.cli.output import JsonFlag, console, print_json


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="The file to write [default: RUN/report.html].")] = None,
    json: JsonFlag = False,
) -> None:
    """Draw a run as one HTML file that opens offline."""
    from megalith.core.errors import ConfigError
    from megalith.core.units import format_bytes
    from megalith.report import write_report
    from megalith.train.run import Run

    target = out or Run(run).report
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder; name a file, such as {target / 'report.html'}.")
    headline = write_report(run, target)
    size = target.stat().st_size
    if json:
        print_json({"run": str(run), "out": str(target), "bytes": size, **headline})
        return
    console.print(f"Wrote {target} ({format_bytes(size)}); open it in a browser.", highlight=False)
