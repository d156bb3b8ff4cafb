"""Markdown that both GitHub and mkdocs read alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Made from the source by `make reference`: change the source, not this page. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def anchor(heading: str) -> str:
    """The id that a heading gets."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def fenced(text: str, language: str) -> str:
    """Lines of code."""
    return f"```{language}\n{text}\n```"


def docstring(text: str) -> str:
    """A docstring as Markdown: `>>>` or `Example:` begins an example, which a blank line ends."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0] == "Example:":
        lines = lines[1:]
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    bare = "\n".join(line[indent:] for line in lines)
    if bare.startswith(">>>") or text.startswith("Example:"):
        return fenced(bare, "python")
    return text


def page(title: str, *parts: str) -> str:
    """A generated page."""
    return "\n\n".join([GENERATED, f"# {title}", *(part for part in parts if part)]) + "\n"
