"""Arguments and options that several `megalith explore` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A job's .yaml path, or the name of one that ships with Megalith."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as parallel.tp=4."),
]
Hardware = Annotated[
    list[Path] | None,
    typer.Option("--hardware", help="A YAML file with devices, links and clusters of your own."),
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="Write the simulated step here, for Perfetto.")
]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Write an HTML page here.")]
