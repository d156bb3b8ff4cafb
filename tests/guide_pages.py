"""Runs a guide's page: its files are written and its commands run, in order, in an empty folder.

A fenced block ```bash is run; a block with a title, such as ```python title="model.py", is that file.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from commands import run

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_guide(name: str, folder: Path, ports: tuple[str, ...] = ()) -> None:
    """`ports` are those of the page that are to be free ones here."""
    # A page that fails half-way ends the servers it has started, so that what they said is read.
    script = ["set -euo pipefail", "trap 'jobs=$(jobs -p); [ -z \"$jobs\" ] || kill $jobs' EXIT"]
    page = (GUIDES / name).read_text(encoding="utf-8")
    for port, free in zip(ports, free_ports(len(ports)), strict=True):
        page = page.replace(port, str(free))
    for language, title, content in _BLOCK.findall(page):
        if title:
            (folder / title).write_text(content, encoding="utf-8")
        elif language == "bash":
            script.append(content)
    assert len(script) > 1, f"{name} has no command"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(["bash", "-c", "\n".join(script)], cwd=folder, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
