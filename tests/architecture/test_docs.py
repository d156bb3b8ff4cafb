"""Documentation that a reader finds, and that says what the code says."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*/*.md"))


@pytest.fixture(scope="module")
def generated():
    """What docs/generate makes of the source, and the modules that make it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        made = runpy.run_path(str(DOCS / "generate"))["pages"]()
        modules = {name: sys.modules[name] for name in ("reference_commands", "reference_config")}
    return made, modules


def test_generated_pages_are_those_that_the_source_makes(generated):
    pages, _modules = generated
    assert {path.name for path in pages} == {"commands.md", "config.md", "api.md"}
    stale = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make reference`"


def test_generated_pages_do_not_depend_on_the_terminal(generated, monkeypatch):
    pages, _modules = generated
    monkeypatch.setenv("COLUMNS", "300")
    assert runpy.run_path(str(DOCS / "generate"))["pages"]() == pages


def test_every_option_and_every_key_says_what_it_means(generated):
    _pages, modules = generated
    assert modules["reference_commands"].unexplained() == []
    assert modules["reference_config"].undocumented_keys() == []


def navigation(entries):
    """The pages that a navigation of mkdocs leads to."""
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else navigation(value)


def test_every_page_is_in_the_navigation_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = list(navigation(config["nav"]))
    assert sorted(pages) == sorted([str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_index_leads_to_every_page(page):
    links = re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert links.count(os.path.relpath(page, DOCS)) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_a_title(page):
    assert re.search(r"^# \S", page.read_text(encoding="utf-8"), re.MULTILINE)
