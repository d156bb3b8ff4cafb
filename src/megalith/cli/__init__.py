"""The command line: `megalith ...`. Commands import what they need when they run, so `--help` is quick."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Runs a command. What the user can put right is one sentence on standard error and exit code 2, with
    `--json` also `{"error": ...}` on standard output; Ctrl-C and a reader that went away (head, less) are no
    errors and say nothing."""
    _open_streams()
    code: int | str | None = 0
    try:
        try:
            from megalith.cli.app import CommandLineError, app
            from megalith.cli.thread_waiting import choose_waiting

            choose_waiting()
            try:
                code = app(standalone_mode=False)
            except CommandLineError as error:
                code = error.exit_code
                error.show()
                _tell_machines(error.format_message())
        except SystemExit as leaving:
            code = leaving.code
        # Here, where its failure can be told, and not while the interpreter ends.
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        drop_output()
    except Exception as error:
        from megalith.core.errors import sentence_of

        sentence = sentence_of(error)
        if sentence is None or os.environ.get("MEGALITH_DEBUG"):
            raise
        if isinstance(error, OSError) and error.filename is None:
            drop_output()
        print(f"megalith: {sentence}", file=sys.stderr)
        code = 2
        _tell_machines(sentence)
    sys.exit(code)


def _tell_machines(sentence: str) -> None:
    """Whoever asked for JSON gets the error as JSON too, where standard output is there to take it."""
    if "--json" in sys.argv and sentence:
        try:
            print(json.dumps({"error": sentence}), flush=True)
        except OSError:
            drop_output()


def drop_output() -> None:
    """Sends what is left of standard output nowhere, so that the interpreter can end without complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Closed by whoever started us.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        else:
            # A name that the encoding of the terminal does not have is written out.
            stream.reconfigure(errors="backslashreplace")
