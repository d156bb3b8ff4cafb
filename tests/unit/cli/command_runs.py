"""Commands as the shell runs them, in this process."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from megalith.cli import main


class Done(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one sentence of a command that was refused."""
        assert self.code == 2, self.out + self.err
        assert self.out == ""
        *before, sentence = self.err.strip().splitlines()
        assert all(line.startswith(("Resuming ", "step ")) for line in before), self.err
        assert sentence.startswith("megalith: "), self.err
        return sentence


def run_command(*arguments):
    """`megalith ...` in this process, through the same `main` that the shell calls."""
    arguments_before, debug = sys.argv, os.environ.get("MEGALITH_DEBUG")
    sys.argv = ["megalith", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as leaving:
            main()
    finally:
        sys.argv = arguments_before
        if debug is None:
            os.environ.pop("MEGALITH_DEBUG", None)
    shown = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Done(leaving.value.code or 0, *shown)
