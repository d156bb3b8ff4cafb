"""No guide with commands is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guide_pages import GUIDES


def test_every_guide_is_run() -> None:
    tests = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    run = {name for text in tests for name in re.findall(r"run_guide\(\"([\w-]+\.md)\"", text)}
    written = {path.name for path in GUIDES.glob("*.md") if "```bash" in path.read_text(encoding="utf-8")}
    missing = written - run
    if missing:
        pytest.fail(f"no test runs {', '.join(sorted(missing))}")
