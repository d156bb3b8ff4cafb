"""`megalith plan`: where each table of a recipe goes on a cluster, and what a step of it will take."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megalith.cli.output import JsonFlag, print_json, print_table, say

if TYPE_CHECKING:
    from megalith.core.schema import TableSpec
    from megalith.hardware.cluster import Cluster
    from megalith.sharding.plan import ExchangeConfig, ShardingPlan
    from megalith.sharding.planner.statistics import TableStatistics

    Inputs = tuple[list[TableSpec], dict[str, TableStatistics], str, int, ExchangeConfig | None]

SHOWN_WORKERS = 16
SHOWN_TABLES = 40


class Algorithm(StrEnum):
    best = "best"
    greedy = "greedy"
    karmarkar_karp = "karmarkar_karp"
    mip = "mip"


def plan(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or .yaml path, or a run's folder.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as model.dim=64."),
    ] = None,
    hardware: Annotated[
        str,
        typer.Option(
            help="A cluster of the catalog, or a YAML file such as `explore catalog --probe` writes."
        ),
    ] = "zionex",
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Workers [default: all of the cluster].")
    ] = None,
    workers_per_node: Annotated[
        int | None, typer.Option(min=1, help="Workers that share a node [default: the cluster's].")
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of a step [default: the recipe's, or a file's on every worker]."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(help="Plan tables of a YAML file, or neo-a, neo-f, neo-i, instead of a recipe's."),
    ] = None,
    algorithm: Annotated[Algorithm, typer.Option(help="How to look for a plan.")] = Algorithm.best,
    local_search: Annotated[bool, typer.Option(help="Improve what the algorithm found.")] = True,
    pipelined: Annotated[
        bool, typer.Option("--pipelined", help="The next batch's ids travel while this one is computed.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Look no longer than this.")] = 9.0,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run a step of all workers in this process, without their tables: follow each id of a batch "
            "(the recipe's data, or drawn for --tables) to its row and back, check memory and balance.",
        ),
    ] = False,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="With --dry-run: check this plan instead of making one.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Place every embedding table on the workers of a cluster; with --dry-run, check that it would work."""
    from megalith.core.errors import ConfigError
    from megalith.core.files import check_target
    from megalith.sharding.plan import read_plan
    from megalith.sharding.planner import make_plan

    if plan_file is not None and not dry_run:
        raise ConfigError("--plan names a plan to check; add --dry-run.")
    if tables is not None and recipe is not None and "=" not in recipe:
        raise ConfigError("Give a recipe or --tables, not both.")
    if out is not None:
        check_target(out)
    cluster = find_cluster(hardware)
    if tables is not None:
        specs, traffic, optimizer, batch, exchange = _from_file(_tables_path(tables))
    elif recipe is not None:
        specs, traffic, optimizer, batch, exchange = _from_recipe(recipe, overrides or [])
    else:
        raise ConfigError("Name a recipe, such as criteo-dlrm, or pass a file with --tables.")
    given = read_plan(plan_file) if plan_file is not None else None
    if given is not None:
        world_size, workers_per_node = given.world_size, min(given.workers_per_node, given.world_size)
    if global_batch is None and tables is None:
        # Training takes a recipe's batch over all workers.
        global_batch = batch
    elif global_batch is None:
        from megalith.sharding.planner.topology import workers_of

        global_batch = batch * workers_of(cluster, world_size, workers_per_node).world_size
    made = given or make_plan(
        specs,
        cluster,
        world_size=world_size,
        workers_per_node=workers_per_node,
        global_batch=global_batch,
        statistics=traffic,
        optimizer_kind=optimizer,
        exchange=exchange,
        algorithm=algorithm.value,
        improve=local_search,
        pipelined=pipelined,
        seconds=seconds,
    )
    if out is not None:
        made.write(out)
    if dry_run:
        from megalith.cli.plan.dry_run import first_batch, show_dry_run
        from megalith.sharding.validate.dry_run import dry_run as check

        checked = check(
            specs,
            made,
            cluster,
            global_batch=global_batch,
            statistics=traffic,
            optimizer_kind=optimizer,
            batch=first_batch(recipe, overrides or [], min(global_batch, 4096))
            if recipe is not None and tables is None
            else None,
        )
        if json_output:
            print_json(checked.to_dict())
        else:
            show_dry_run(checked)
        return
    if json_output:
        print_json({**made.model_dump(mode="json"), "global_batch": global_batch})
        return
    _show(made, global_batch)
    if out is not None:
        say(f"Wrote {out}; `megalith report {shlex.quote(str(out))}` draws it.")


def find_cluster(name_or_file: str) -> Cluster:
    """A cluster by its catalog name, or the last one that a YAML file describes."""
    from megalith.core.config import load_yaml
    from megalith.core.errors import ConfigError
    from megalith.hardware.catalog import catalog

    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        return catalog().cluster(name_or_file)
    names = list(load_yaml(path).get("clusters") or ())
    if not names:
        raise ConfigError(f"{path} describes no cluster; add one under `clusters:`.")
    return catalog(path).cluster(names[-1])


def _from_recipe(name: str, overrides: list[str]) -> Inputs:
    """Tables of the recipe's model on the recipe's data, with measured traffic if it lies beside the data."""
    from megalith.data.dataset import Dataset
    from megalith.data.stats import STATISTICS_FILE, read_statistics
    from megalith.sharding.planner.statistics import default_statistics, from_dataset
    from megalith.train.recipe import load_recipe

    settings = load_recipe(name, overrides)
    dataset = Dataset(settings.data.path)
    features = dataset.schema.categorical
    specs = settings.model.tables(features)
    if (dataset.folder / STATISTICS_FILE).exists():
        traffic = from_dataset(specs, read_statistics(dataset.folder))
    else:
        # Of features that hold several ids the schema knows the most, not the mean.
        lengths = {one.name: max(1.0, (one.max_length or 8) / 2) for one in features if one.multi_hot}
        traffic = {table.name: default_statistics(table, lengths) for table in specs}
    return (
        specs,
        traffic,
        settings.embeddings.optimizer.kind,
        settings.data.batch_size,
        settings.sharding.exchange,
    )


def _tables_path(name_or_path: str) -> Path:
    """A YAML file, or one of those that ship with the package."""
    from megalith.core.errors import ConfigError, nearest
    from megalith.sharding import models

    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = {one.stem: one for folder in models.__path__ for one in sorted(Path(folder).glob("*.yaml"))}
    if name_or_path not in shipped:
        raise ConfigError(
            f"No tables '{name_or_path}': {nearest(name_or_path, list(shipped))} A path must end in .yaml."
        )
    return shipped[name_or_path]


def _from_file(path: Path) -> Inputs:
    """A list under `tables:`, each as TableSpec and, if known, `lookups` (ids a sample), `skew` (Zipf) and
    `count` (so many alike); beside it `optimizer`, `batch_size` and `exchange`."""
    from megalith.core.config import load_yaml, parse_config
    from megalith.core.errors import ConfigError
    from megalith.core.schema import TableSpec
    from megalith.sharding.plan import ExchangeConfig
    from megalith.sharding.planner.statistics import DEFAULT_SKEW, zipf_statistics

    content = load_yaml(path)
    listed = content.get("tables")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} has no list of tables; write them under `tables:`.")
    specs, traffic = [], {}
    for number, entry in enumerate(listed):
        where = f"{path}, tables.{number}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{where} must be a mapping with name, rows and dim.")
        known = dict(entry)
        lookups, skew = known.pop("lookups", None), known.pop("skew", DEFAULT_SKEW)
        count = known.pop("count", 1)
        if not isinstance(skew, (int, float)) or not isinstance(lookups, (int, float, type(None))):
            raise ConfigError(f"{where}: lookups and skew must be numbers.")
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"{where}: count must be a whole number from 1.")
        names = [f"{known.get('name', '')}{place}" for place in range(count)] if count > 1 else []
        for given in [{**known, "name": name} for name in names] or [known]:
            table = parse_config(TableSpec, {"features": (given.get("name", ""),), **given}, where)
            found = float(lookups) if lookups is not None else float(len(table.features))
            specs.append(table)
            traffic[table.name] = zipf_statistics(table.rows, found, float(skew))
    exchange = content.get("exchange")
    return (
        specs,
        traffic,
        str(content.get("optimizer", "rowwise_adagrad")),
        int(content.get("batch_size", 2048)),
        None if exchange is None else parse_config(ExchangeConfig, exchange, f"{path}, exchange"),
    )


def _show(made: ShardingPlan, global_batch: int) -> None:
    from megalith.core.units import format_bytes, format_count, format_duration

    estimate: dict[str, Any] = made.estimate
    tables = sorted(estimate["tables"], key=lambda one: -one["seconds"])
    rows = [
        [
            one["table"],
            placement_words(made, one),
            format_count(one["rows"]),
            one["dim"],
            f"{one['lookups']:.3g}",
            format_bytes(one["bytes"]) + ("" if one["tier"] == first_tier(estimate) else f" {one['tier']}"),
            format_duration(one["seconds"]),
        ]
        for one in tables[:SHOWN_TABLES]
    ]
    more = f", the {SHOWN_TABLES} dearest of {len(tables):,}" if len(tables) > SHOWN_TABLES else ""
    print_table(
        f"Tables{more}", ["table", "placement", "rows", "dim", "ids", "bytes", "seconds in all"], rows
    )
    print_table(*_load_table(made))
    phases = estimate["phases"]
    slowest = ", ".join(
        f"{name} {format_duration(one['seconds'])}" for name, one in phases.items() if one["counted"]
    )
    say(
        f"Embedding part of a step of {global_batch:,} samples on {made.world_size:,} "
        f"{estimate['device']}: {format_duration(estimate['step_seconds'])} ({slowest}), bound by "
        f"{estimate['bound_by']}; at most {estimate['gap']:.2%} above the best possible, "
        f"imbalance {estimate['imbalance']:.1%}; found by {estimate['algorithm']} in "
        f"{estimate['planning_seconds']:.1f} s."
    )


def first_tier(estimate: dict[str, Any]) -> str:
    return str(next(iter(estimate["memory_capacity_bytes"])))


def placement_words(made: ShardingPlan, table: dict[str, Any]) -> str:
    """Such as `column_wise in 3 on 0, 5, 7`."""
    workers = made.placement(table["table"]).workers
    where = ", ".join(map(str, workers)) if len(workers) <= 4 else f"{len(workers)} workers"
    if len(workers) == made.world_size and made.world_size > 1:
        where = "all"
    parts = f" in {table['columns']}" if table["columns"] > 1 else ""
    return f"{table['kind']}{parts} on {where}"


def _load_table(made: ShardingPlan) -> tuple[str, list[str], list[list[str]]]:
    """Worker by worker, or the spread over all when they are many."""
    from statistics import mean

    from megalith.core.units import format_bytes, format_duration

    workers = made.estimate["workers"]
    tiers = [
        tier
        for tier in made.estimate["memory_capacity_bytes"]
        if any(one["memory_bytes"][tier] for one in workers)
    ]
    columns = ["", "compute", "communication", *tiers]

    def cells(name: str, pick: Any) -> list[str]:
        return [
            name,
            format_duration(pick([one["compute_seconds"] for one in workers])),
            format_duration(pick([one["communication_seconds"] for one in workers])),
            *(format_bytes(pick([one["memory_bytes"][tier] for one in workers])) for tier in tiers),
        ]

    if len(workers) > SHOWN_WORKERS:
        rows = [cells("least", min), cells("mean", mean), cells("most", max)]
        return f"Load of {len(workers):,} workers", columns, rows
    rows = [
        [
            str(one["worker"]),
            format_duration(one["compute_seconds"]),
            format_duration(one["communication_seconds"]),
            *(format_bytes(one["memory_bytes"][tier]) for tier in tiers),
        ]
        for one in workers
    ]
    return "Load by worker", ["worker", *columns[1:]], rows
