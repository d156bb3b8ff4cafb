"""Writes the pages of docs/reference that are made from the source: `make reference`.

`tests/architecture/test_docs.py` fails where a page is not what this would write.
"""

from __future__ import annotations

from pathlib import Path

from reference_api import api_page
from reference_commands import commands_page
from reference_config import config_page

REFERENCE = Path(__file__).parents[1] / "reference"


def pages() -> dict[Path, str]:
    """The text of each page."""
    return {
        REFERENCE / "commands.md": commands_page(),
        REFERENCE / "config.md": config_page(),
        REFERENCE / "api.md": api_page(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path)
