"""`partition.json`: what is written is what is read; what cannot be right is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_machines import machine, setting, table

from megalith.core.errors import ServeError
from megalith.export.partition.plan import partition
from megalith.export.partition.records import PARTITION, Partition, read_partition


def made() -> Partition:
    given = setting(table("a", lookups=10), table("b", lookups=30), table("s", 0.1, 50), on=machine(cards=5))
    return partition(given)


def test_a_partition_reads_back_as_it_was_written(tmp_path: Path) -> None:
    record = made()
    assert record.write(tmp_path) == tmp_path / PARTITION
    assert read_partition(tmp_path) == record
    assert record.host_tables == ("s",)
    assert record.prediction.measured is False


def test_gains_are_against_the_placement_taken() -> None:
    record = made()
    assert record.gains[record.rule] == 0
    for name, gain in record.gains.items():
        seconds = record.comparison.slowest_card_seconds[name]
        assert record.prediction.slowest_card_seconds == pytest.approx(seconds * (1 - gain))


def test_a_table_that_lies_twice_is_refused(tmp_path: Path) -> None:
    content = json.loads(made().model_dump_json())
    content["host_tables"] = ["a"]
    (tmp_path / PARTITION).write_text(json.dumps(content))
    with pytest.raises(ServeError, match=r"partition\.json.*table 'a' is placed twice.*megalith export DIR"):
        read_partition(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("{}", "has version None, this package reads 1"), ("", "is empty")],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / PARTITION).write_text(text)
    with pytest.raises(ServeError, match=rf"partition\.json {said}.*megalith export DIR --hardware NAME"):
        read_partition(tmp_path)


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match=r"does not exist; make it again with `megalith export"):
        read_partition(tmp_path)
