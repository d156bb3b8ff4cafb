"""YAML that a hostile file cannot make large: only plain values, nested and repeated within bounds.

Aliases let a few lines stand for billions of values, and nesting deeper than Python recurses ends it. Both
are refused while the text is read, with the line.
"""

from __future__ import annotations

from typing import Any

import yaml

from megalith.core.files import MAX_DEPTH

MAX_VALUES = 1_000_000
"""Values of a file with every alias written out."""


class YamlError(ValueError):
    """Text that is no YAML, or more of it than we read; `line` counts from 1 where it is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> Any:
    """The value that `text` describes.

    >>> parse_yaml("a: [1, 2]")
    {'a': [1, 2]}
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
        raise YamlError(str(problem), mark.line + 1 if mark else None) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        # Values that look like a date or say that they are a number, and are not: PyYAML just fails.
        raise YamlError(f"a value is not what it looks like or says it is ({error})") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """Counts depth and values while nodes are put together, before any of them is built."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        before = self._values
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not is_alias:
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]
        else:
            raise yaml.MarkedYAMLError(None, None, "an alias stands for something that contains it", mark)
        if self._values > MAX_VALUES:
            raise yaml.MarkedYAMLError(
                None, None, f"more than {MAX_VALUES:,} values with aliases written out", mark
            )
        return node
