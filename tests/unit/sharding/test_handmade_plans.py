"""Plans that a person wrote: what is wrong with one is said with the place; odd ones that are right pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megalith.cli import main
from megalith.cli.app import app

TABLES = """
tables:
  - {name: a, rows: 100, dim: 8}
  - {name: b, rows: 50, dim: 4}
"""
WHOLE = {"table": "b", "kind": "table_wise", "shards": [{"worker": 2, "rows": [0, 50], "columns": [0, 4]}]}


def cut(*rectangles: tuple[int, tuple[int, int], tuple[int, int]], kind: str = "row_wise") -> dict[str, Any]:
    shards = [{"worker": worker, "rows": rows, "columns": columns} for worker, rows, columns in rectangles]
    return {"table": "a", "kind": kind, "shards": shards}


def arguments(folder: Path, content: dict[str, Any]) -> list[str]:
    """The command that checks a plan for three workers."""
    (folder / "tables.yaml").write_text(TABLES)
    plan = {"version": 2, "world_size": 3, "workers_per_node": 3, **content}
    (folder / "plan.json").write_text(json.dumps(plan))
    names = ["--tables", str(folder / "tables.yaml"), "--plan", str(folder / "plan.json")]
    return ["plan", *names, "--hardware", "cpu-rack", "--global-batch", "64", "--dry-run", "--json"]


@pytest.mark.parametrize(
    "placement",
    [
        cut((2, (0, 50), (0, 8)), (0, (50, 100), (0, 8))),
        cut((1, (0, 1), (0, 8)), (1, (1, 100), (0, 3)), (0, (1, 100), (3, 8))),
        cut((1, (0, 50), (0, 8)), (1, (50, 100), (0, 8))),
        cut((0, (0, 50), (0, 8)), (1, (50, 100), (0, 8)), kind="table_wise"),
        cut((0, (0, 100), (0, 7)), (1, (0, 100), (7, 8)), kind="table_row"),
    ],
    ids=["some workers", "uneven", "twice on one", "rows called whole", "columns called rows"],
)
def test_odd_plans_that_cover_their_tables_are_followed(tmp_path: Path, placement: dict[str, Any]) -> None:
    done = CliRunner().invoke(app, arguments(tmp_path, {"placements": [placement, WHOLE]}))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ids_checked"] == 128


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            [cut((0, (0, 10), (0, 8)), (1, (11, 100), (0, 8))), WHOLE],
            "exactly once: it lacks row 10, column 0",
        ),
        (
            [cut((0, (0, 100), (0, 5)), (1, (3, 100), (5, 8))), WHOLE],
            "exactly once: it lacks row 0, column 5",
        ),
        ([cut((0, (0, 11), (0, 8)), (1, (10, 100), (0, 8))), WHOLE], "it has row 10, column 0 twice"),
        (
            [cut((0, (0, 10), (0, 8)), (1, (10, 101), (0, 8))), WHOLE],
            "table 'a' has a rectangle of rows 10 to 101, columns 0 to 8, which is no part of 100 x 8",
        ),
        ([cut((3, (0, 100), (0, 8))), WHOLE], "table 'a' names worker 3 of 3, the first being 0"),
        ([WHOLE], "places table 'a' 0 times"),
        ([cut((0, (0, 100), (0, 8))), WHOLE, WHOLE], "places table 'b' 2 times"),
        (
            [cut((0, (0, 100), (0, 8))), WHOLE, {**WHOLE, "table": "c"}],
            "places table 'c', which the model does not have",
        ),
        ([cut((0, (0, 100), (0, 8)), kind="data_parallel"), WHOLE], "put the whole table on every worker"),
        ([cut((0, (0, 100), (0, 8)), kind="rows"), WHOLE], "plan.json, placements.0.kind: Input should be"),
    ],
    ids=[
        "rows missing",
        "cells missing",
        "twice",
        "beyond",
        "worker",
        "no table",
        "two",
        "unknown",
        "copy",
        "kind",
    ],
)
def test_wrong_plans_are_refused_in_one_sentence(
    tmp_path: Path, content: list[dict[str, Any]], said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["megalith", *arguments(tmp_path, {"placements": content})])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert said in json.loads(printed.out)["error"]
    assert said in printed.err
    assert printed.err.startswith("megalith: ")
    assert printed.err.count("\n") == 1
