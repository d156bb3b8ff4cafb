"""The status page in a browser: it draws what the server says of itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton_http

from networked_models import draw_inputs
from running_server import inputs_for

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def shown(url: str, profile: Path, *flags: str) -> str:
    command = [
        BROWSER or "",
        *_FLAGS,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=6000",
        *flags,
        url,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed; `apt install chromium` runs this test")
def test_the_page_shows_cards_queue_latency_traffic_and_versions(server: Any, tmp_path: Path) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        for seed in range(20):
            client.infer("small", inputs_for(triton_http, draw_inputs(30, seed)))
    page = shown(server.url, tmp_path / "profile", "--dump-dom", f"--screenshot={tmp_path}/page.png")
    for said in ('class="badge">ready', "card 0", "at most 200", "2 models, 1 card"):
        assert said in page
    assert re.search(r"<td>small</td><td>3</td><td[^>]*>newest</td><td>[1-9]", page)
    assert re.search(r"<td>small</td><td>2</td><td[^>]*>served</td>", page)
    for chart in ("requests a second", "latency histogram", "cards at work"):
        assert f'aria-label="{chart}"' in page
    assert page.count("<rect") >= 10
    bound = re.search(r'id="bound-text"[^>]*>([^<]+)<', page)
    assert bound
    assert bound[1].endswith(".")


def test_the_page_asks_no_other_host(server: Any) -> None:
    with urllib.request.urlopen(server.url) as response:
        page = response.read().decode()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", page)
