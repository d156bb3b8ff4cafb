"""A dry run follows every id of a batch to its row and back, for any plan."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import megalith as mg
from megalith.cli.app import app
from megalith.core.errors import PlanError
from megalith.hardware.catalog import catalog
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ExchangeConfig, Placement, Shard, ShardingPlan
from megalith.sharding.planner.statistics import zipf_statistics
from megalith.sharding.validate.batches import generated_batch
from megalith.sharding.validate.delivery import check_delivery
from megalith.sharding.validate.dry_run import dry_run, fake_ranks

KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel", "table_row", "table_column", "grid")


def ranges(size, parts):
    edges = [size * part // parts for part in range(parts + 1)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def placement(table, kind, world, per_node, first):
    nodes = world // per_node
    node = [first % nodes * per_node + place for place in range(per_node)]
    everyone = [(first + place) % world for place in range(world)]
    rows, columns = [(0, table.rows)], [(0, table.dim)]
    if kind == "data_parallel":
        cells = [(worker, rows[0], columns[0]) for worker in range(world)]
    elif kind == "table_wise":
        cells = [(first % world, rows[0], columns[0])]
    elif kind in ("row_wise", "table_row"):
        workers = everyone if kind == "row_wise" else node
        cells = [(w, r, columns[0]) for w, r in zip(workers, ranges(table.rows, len(workers)), strict=False)]
    elif kind in ("column_wise", "table_column"):
        workers = everyone if kind == "column_wise" else node
        cells = [(w, rows[0], c) for w, c in zip(workers, ranges(table.dim, len(workers)), strict=False)]
    else:
        cells = [
            (((first + number) % nodes) * per_node + place, r, c)
            for number, c in enumerate(ranges(table.dim, nodes))
            for place, r in enumerate(ranges(table.rows, per_node))
        ]
    shards = tuple(Shard(worker=w, rows=r, columns=c) for w, r, c in cells)
    return Placement(table=table.name, kind=kind, shards=shards)


def mixture(tables, world, per_node, kinds=KINDS):
    return ShardingPlan(
        world_size=world,
        workers_per_node=per_node,
        placements=tuple(
            placement(table, kinds[number % len(kinds)], world, per_node, number * 7)
            for number, table in enumerate(tables)
        ),
    )


def some_tables(count, rows=1000, dim=16, features=("f", "g")):
    return [
        mg.TableSpec(
            name=f"t{n}", rows=rows + 17 * n, dim=dim + n % 3, features=tuple(f"{one}{n}" for one in features)
        )
        for n in range(count)
    ]


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=7),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 4),
    rows=st.integers(1, 60),
    seed=st.integers(0, 99),
    every=st.integers(1, 4),
)
def test_every_mixture_of_placements_delivers(kinds, nodes, per_node, rows, seed, every):
    tables = some_tables(len(kinds), rows, 5)
    # Some of them keep sequences.
    tables[every::every] = [one.model_copy(update={"pooling": "none"}) for one in tables[every::every]]
    plan = mixture(tables, nodes * per_node, per_node, kinds)
    statistics = {table.name: zipf_statistics(table.rows, 3.7) for table in tables}
    values, offsets = generated_batch(tables, statistics, 9, seed)
    looked_up = check_delivery(tables, ExchangeLayout(tables, plan), values, offsets)
    assert len(looked_up) == nodes * per_node


def test_a_thousand_tables_on_1024_workers():
    tables = some_tables(1000, 5000, 32, ("f",))
    # Most tables of such models are small: one in 40 is cut over everybody.
    kinds = ("table_wise",) * 29 + ("column_wise", "table_row", "grid", "table_column") * 2 + KINDS[1:4]
    plan = mixture(tables, 1024, 8, kinds)
    cluster = catalog().cluster("dgx-a100")
    checked = dry_run(tables, plan, cluster, global_batch=65536)
    assert checked.world_size == len(checked.workers) == 1024
    assert checked.ids_checked >= 50_000
    json.dumps(checked.to_dict())


def test_bytes_are_those_of_a_plan_done_by_hand():
    tables = [
        mg.TableSpec(name="whole", rows=100, dim=8, features=("a",)),
        mg.TableSpec(name="cut", rows=100, dim=4, features=("b",)),
    ]
    plan = ShardingPlan(
        world_size=2,
        workers_per_node=2,
        placements=(placement(tables[0], "table_wise", 2, 2, 0), placement(tables[1], "row_wise", 2, 2, 0)),
        exchange=ExchangeConfig(forward="fp32", backward="bf16"),
    )
    uniform = {table.name: zipf_statistics(100, 1.0, 0.0) for table in tables}
    cluster = replace(catalog().cluster("zionex"), name="two")
    checked = dry_run(tables, plan, cluster, global_batch=64, statistics=uniform)
    # Worker 0 sends 12 columns to 32 samples of worker 1, worker 1 sends 4 columns back; gradients mirrored.
    assert checked.exchanged_bytes["vectors"] == 32 * 4 * (12 + 4)
    assert checked.exchanged_bytes["gradients"] == 32 * 2 * (4 + 12)
    assert [load.lookups for load in checked.workers] == pytest.approx([64 + 32, 32])
    # Rank 0 sends worker 1 the ids of rows 50 to 99: a head, lengths of 32 samples, about 16 ids.
    assert 20 + 4 * 32 < checked.first_rank_index_bytes < 20 + 4 * 64 + 4
    assert checked.balance["lookups"] == pytest.approx(1.5)


def test_bytes_of_a_sequence_are_those_of_its_ids():
    tables = [mg.TableSpec(name="s", rows=100, dim=8, features=("a",), pooling="none")]
    exchange = ExchangeConfig(forward="fp32", backward="int8")
    plan = mixture(tables, 2, 2, ("row_wise",)).model_copy(update={"exchange": exchange})
    uniform = {"s": zipf_statistics(100, 3.0, 0.0)}
    checked = dry_run(tables, plan, catalog().cluster("zionex"), global_batch=64, statistics=uniform)
    # Each worker has the rows of half of 192 ids, and sends half of these vectors away.
    assert checked.exchanged_bytes["vectors"] == pytest.approx(2 * 48 * 4 * 8)
    assert checked.exchanged_bytes["gradients"] == pytest.approx(2 * 48 * (4 + 8))


@pytest.mark.parametrize("fault", ["lost", "doubled", "column"])
def test_a_layout_that_misleads_the_vectors_of_a_sequence_is_refused(fault):
    tables = [one.model_copy(update={"pooling": "none"}) for one in some_tables(2, 100, 8)]
    layout = ExchangeLayout(tables, mixture(tables, 4, 4, ("row_wise", "column_wise")))
    first = layout.workers[0]
    pieces = {
        "lost": first.pieces[1:],
        "doubled": (*first.pieces, first.pieces[0]),
        "column": (*first.pieces[:-1], first.pieces[-1]._replace(columns=(1, 4))),
    }[fault]
    layout.workers = (replace(first, pieces=pieces), *layout.workers[1:])
    statistics = {table.name: zipf_statistics(table.rows, 4.0, 0.0) for table in tables}
    with pytest.raises(PlanError, match="exactly once; make the plan again"):
        check_delivery(tables, layout, *generated_batch(tables, statistics, 50))


def test_ids_that_two_tables_read_travel_once():
    tables = [
        mg.TableSpec(name="wide", rows=200, dim=8, features=("a",)),
        mg.TableSpec(name="short", rows=100, dim=4, features=("a",)),
    ]
    together = ShardingPlan(
        world_size=2,
        workers_per_node=2,
        placements=tuple(placement(table, "table_wise", 2, 2, 0) for table in tables),
    )
    apart = ShardingPlan(
        world_size=2,
        workers_per_node=2,
        placements=tuple(placement(table, "table_wise", 2, 2, n) for n, table in enumerate(tables)),
    )
    cluster, uniform = (
        catalog().cluster("zionex"),
        {t.name: zipf_statistics(t.rows, 1.0, 0.0) for t in tables},
    )
    ids = [
        dry_run(tables, plan, cluster, global_batch=64, statistics=uniform).exchanged_bytes["ids"]
        for plan in (together, apart)
    ]
    # 32 samples of the other rank: an id and a length each, and a head.
    head = 20
    assert ids == pytest.approx([32 * 8 + 2 * head, 2 * 32 * 8 + 2 * head])


def test_a_real_batch_is_followed():
    tables = some_tables(3)
    values = np.arange(24, dtype=np.int64)
    offsets = np.arange(25, dtype=np.int64)
    plan = mixture(tables, 4, 2)
    batch = (values, offsets)
    checked = dry_run(tables, plan, catalog().cluster("zionex"), global_batch=4, batch=batch)
    assert (checked.samples_checked, checked.ids_checked) == (4, 24)


def test_rows_that_nobody_holds_are_refused():
    table = mg.TableSpec(name="t", rows=100, dim=8, features=("f",))
    gap = tuple(Shard(worker=w, rows=r, columns=(0, 8)) for w, r in ((0, (0, 50)), (1, (51, 100))))
    plan = ShardingPlan(
        world_size=2, workers_per_node=2, placements=(Placement(table="t", kind="row_wise", shards=gap),)
    )
    with pytest.raises(PlanError, match="'t' does not cover the table exactly once"):
        dry_run([table], plan, catalog().cluster("zionex"), global_batch=64)


@pytest.mark.parametrize("fault", ["lost", "doubled", "elsewhere", "column"])
def test_a_layout_that_misleads_ids_or_columns_is_refused(fault):
    tables = some_tables(2, 100, 8)
    plan = mixture(tables, 4, 4, ("row_wise", "column_wise"))
    layout = ExchangeLayout(tables, plan)
    first = layout.workers[0]
    runs = first.direct_columns
    if fault == "elsewhere":
        family = layout.row_partitions[0]
        bounds = (family.bounds[0], family.bounds[1] + 3, *family.bounds[2:])
        layout.row_partitions = (family._replace(bounds=bounds), *layout.row_partitions[1:])
    elif fault == "lost":
        runs = runs[:-1]
    elif fault == "doubled":
        runs = (*runs, runs[-1]._replace(output=0))
    else:
        runs = (runs[0]._replace(output=1), *runs[1:])
    layout.workers = (replace(first, direct_columns=runs), *layout.workers[1:])
    statistics = {table.name: zipf_statistics(table.rows, 4.0, 0.0) for table in tables}
    with pytest.raises(PlanError, match="make the plan again"):
        check_delivery(tables, layout, *generated_batch(tables, statistics, 50))


def test_tables_that_do_not_fit_are_named_with_what_is_missing():
    table = mg.TableSpec(name="t", rows=400_000_000, dim=64, features=("f",))
    plan = mixture([table], 8, 8, ("table_wise",))
    with pytest.raises(PlanError, match=r"Worker 0 needs .* of hbm and a a100-40g has 40.0 GiB"):
        dry_run([table], plan, catalog().cluster("zionex"), global_batch=64)


def test_a_batch_smaller_than_the_workers_is_refused():
    tables = some_tables(1)
    with pytest.raises(PlanError, match="take a batch of 8 or more"):
        dry_run(tables, mixture(tables, 8, 8), catalog().cluster("zionex"), global_batch=4)


def test_fake_ranks_leave_no_process_group_behind():
    with fake_ranks(1024) as group:
        assert group.size() == 1024
    assert not torch.distributed.is_initialized()


def test_the_command_checks_a_plan_that_it_makes_and_one_that_it_is_given(tmp_path):
    tables = tmp_path / "tables.yaml"
    entries = [f"  - {{name: t{n}, rows: {1000 * (n + 1)}, dim: 16, lookups: 3}}" for n in range(12)]
    tables.write_text("tables:\n" + "\n".join(entries) + "\n")
    plan = tmp_path / "plan.json"
    common = ["plan", "--tables", str(tables), "--hardware", "zionex", "--dry-run", "--json"]
    run = SimpleNamespace(invoke=lambda *more: CliRunner().invoke(app, [*common, *more]))
    made = run.invoke("--world-size", "16", "--seconds", "0.5", "--out", str(plan))
    assert made.exit_code == 0, made.output
    given = run.invoke("--plan", str(plan))
    assert given.exit_code == 0, given.output
    found, again = (json.loads(result.stdout) for result in (made, given))
    assert found["world_size"] == 16
    lookups = [worker["lookups"] for worker in found["workers"]]
    assert found["balance"]["lookups"] == pytest.approx(max(lookups) * 16 / sum(lookups))
    assert again["workers"] == found["workers"]


def test_the_models_of_neo_ship_with_the_package():
    command = ["plan", "--tables", "neo-i", "--seconds", "0.5", "--algorithm", "greedy", "--json"]
    found = json.loads(CliRunner().invoke(app, [*command, "--no-local-search"]).stdout)
    assert found["exchange"] == {"forward": "fp16", "backward": "bf16", "deduplicate": False}
    assert len(found["placements"]) == 500
