"""What a plan depends on: statistics of a data set, files of tables, the search of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import megalith as mg
from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec, TableSpec
from megalith.hardware.catalog import catalog
from megalith.sharding.plan import read_plan
from megalith.sharding.planner import Planner, SearchSettings
from megalith.sharding.planner.inputs import dataset_statistics, local_cluster, plan_inputs
from megalith.sharding.planner.search import run_search
from megalith.sharding.planner.statistics import zipf_statistics
from megalith.sharding.planner.table_file import find_table_file, read_table_file
from megalith.sharding.planner.types import Workload

FEATURES = (
    FeatureSpec(name="one", num_ids=100),
    FeatureSpec(name="some", num_ids=100, max_length=20),
    FeatureSpec(name="two", num_ids=100, max_length=2),
    FeatureSpec(name="any", num_ids=100, max_length=None),
)


def tables() -> list[TableSpec]:
    return [TableSpec(name=one.name, rows=1000, dim=16, features=(one.name,)) for one in FEATURES]


def test_features_of_several_ids_count_as_half_of_the_most_they_hold(tmp_path: Path) -> None:
    statistics = dataset_statistics(tables(), tmp_path, FEATURES)
    assert {name: known.lookups for name, known in statistics.items()} == {
        "one": 1.0,
        "some": 10.0,
        "two": 1.0,
        "any": 4.0,
    }


def test_tables_without_statistics_get_the_defaults() -> None:
    known = {"some": zipf_statistics(1000, 7.0)}
    inputs = plan_inputs(tables(), catalog().cluster("zionex"), Workload(64), world_size=2, statistics=known)
    assert [inputs.statistics[name].lookups for name in ("one", "some", "any")] == [1.0, 7.0, 1.0]


def test_the_local_cluster_has_a_host_for_every_node() -> None:
    inputs = plan_inputs(tables(), local_cluster(6, 2), Workload(64), world_size=6, workers_per_node=2)
    assert (inputs.topology.world_size, inputs.topology.per_node, inputs.topology.nodes) == (6, 2, 3)


def test_the_search_of_a_run_is_counted_and_takes_fewer_steps_where_each_takes_longer() -> None:
    steps = [run_search(count, workers).steps for count, workers in ((1, 2), (26, 8), (300, 32), (2000, 512))]
    assert None not in steps
    assert steps == sorted(steps, key=lambda count: -(count or 0))
    assert steps[0] == steps[1] > steps[2] > steps[3] >= 400


def test_the_same_inputs_give_the_same_plan() -> None:
    inputs = plan_inputs(tables(), local_cluster(2, 2), Workload(64, pipelined=True), world_size=2)
    plans = [Planner(SearchSettings(steps=300)).plan(inputs) for _ in range(2)]
    assert plans[0].placements == plans[1].placements


def test_a_plan_file_holds_its_estimate_as_it_was(tmp_path: Path) -> None:
    plan = mg.make_plan(tables(), "zionex", global_batch=64, world_size=2, search=SearchSettings(steps=100))
    path = tmp_path / "plan.json"
    plan.write(path)
    again = read_plan(path)
    assert again == plan
    assert again.estimate == plan.estimate
    again.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    # Written by hand, without one.
    plan.model_copy(update={"estimate": None}).write(path)
    assert '"estimate": {}' in path.read_text()
    assert read_plan(path).estimate is None


def test_a_file_of_tables_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text(
        "optimizer: adam\nbatch_size: 32\nexchange: {forward: fp16}\n"
        "tables: [{name: many, rows: 10, dim: 4, count: 2, lookups: 3}, {name: lone, rows: 5, dim: 8}]"
    )
    file = read_table_file(path)
    assert [table.name for table in file.tables] == ["many0", "many1", "lone"]
    assert [file.statistics[table.name].lookups for table in file.tables] == [3.0, 3.0, 1.0]
    assert (file.optimizer, file.batch_size) == ("adam", 32)
    assert file.exchange is not None
    assert file.exchange.forward == "fp16"


def test_the_rows_of_a_dynamic_table_of_a_file_are_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("tables: [{name: ids, dim: 4, store: {kind: dynamic, bound: 500}}]")
    file = read_table_file(path)
    assert (file.tables[0].rows, file.statistics["ids"].rows[-1]) == (500, 500.0)
    path.write_text("tables: [{name: ids, dim: 4, store: {kind: dynamic, bound_bytes: 1MiB}}]")
    with pytest.raises(
        ConfigError, match=r"tables\.0: the rows of a dynamic table are its bound; give bound"
    ):
        read_table_file(path)


def test_an_unknown_shipped_model_is_refused_with_the_nearest() -> None:
    assert find_table_file("neo-a").exists()
    with pytest.raises(ConfigError, match="neo-a"):
        find_table_file("neo-aa")
