"""The status page: one HTML file that asks no other host for anything."""

from __future__ import annotations

from pathlib import Path

PAGE = (Path(__file__).parent / "page.html").read_bytes()
