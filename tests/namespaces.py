"""Network namespaces, where a test may make them."""

from __future__ import annotations

import os
import shutil
import subprocess


def can_make_namespaces() -> bool:
    """Whether this is root, with iproute2, on a kernel that lets it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"megalith-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made
