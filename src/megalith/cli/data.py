"""`megalith data prepare|synth|stats`."""

from __future__ import annotations

import typer

data = typer.Typer(help="Prepare, generate and measure click data.", no_args_is_help=True)
