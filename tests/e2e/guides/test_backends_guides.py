"""The guides to backends and cards are true."""

from __future__ import annotations

import json
from pathlib import Path

from guide_pages import run_guide


def test_the_guide_to_a_backend_of_your_own_is_true(tmp_path: Path) -> None:
    run_guide("backends.md", tmp_path)


def test_the_guide_to_cards_is_true(tmp_path: Path) -> None:
    run_guide("cards.md", tmp_path)
    made = json.loads((tmp_path / "rm2.json").read_text())
    assert made["partition"]["hardware"] == "yosemite-v2-mtia-v1"
