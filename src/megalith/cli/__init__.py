"""The command line: `megalith ...`. Commands import what they need when they run, so `--help` is quick."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs a command; a MegalithError becomes its one sentence on standard error and exit code 2."""
    from megalith.core.errors import MegalithError

    try:
        from megalith.cli.app import app

        app()
    except MegalithError as error:
        if os.environ.get("MEGALITH_DEBUG"):
            raise
        print(f"megalith: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
