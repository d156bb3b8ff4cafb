"""The commands of `megalith bench`: data, embedding, tiers, train, predict, explore and plan."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from megalith.cli.bench.adaptive import adaptive
from megalith.cli.bench.serve import serve
from megalith.cli.bench.tables import (
    show_data,
    show_embedding,
    show_explore,
    show_plan,
    show_predict,
    show_ranking,
    show_tiers,
    show_train,
)
from megalith.cli.output import JsonFlag, note, print_json

bench = typer.Typer(
    help="Measure this machine, beside the tools one would use instead.", no_args_is_help=True
)
bench.command()(adaptive)
bench.command()(serve)


def _checked(out: Path | None) -> Path | None:
    """Refuses a file that cannot be written before minutes of measuring, not after them."""
    from megalith.core.files import check_target

    if out is not None:
        check_target(out)
    return out


OutOption = Annotated[
    Path | None,
    typer.Option("--out", callback=_checked, help="Also write the result to this JSON file."),
]


PeerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer", help="Run beside this, or several as a,b; `none` for nobody [default: all installed]."
    ),
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads of all sides [default: torch's].")]


class DataBenchPart(StrEnum):
    """What `bench data` measures."""

    prepare = "prepare"
    loader = "loader"


class ShapeSet(StrEnum):
    """Which table shapes `bench embedding` measures."""

    headline = "headline"
    sweep = "sweep"
    scaling = "scaling"


class BenchSharding(StrEnum):
    """How `bench train` shards every table."""

    table_wise = "table_wise"
    row_wise = "row_wise"
    column_wise = "column_wise"
    data_parallel = "data_parallel"
    auto = "auto"


class TierPart(StrEnum):
    """What `bench tiers` measures."""

    rate = "rate"
    peers = "peers"
    training = "training"
    capability = "capability"
    engines = "engines"
    policies = "policies"
    billion = "billion"


def chosen_parts(wanted: list[str]) -> list[str]:
    """The parts of `bench tiers` that are named, in `a,b` or one by one; all where none is.

    >>> chosen_parts(["peers,rate"])
    ['rate', 'peers']
    """
    from megalith.core.errors import ConfigError, nearest

    known = [part.value for part in TierPart]
    names = [name.strip() for argument in wanted for name in argument.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name} is no part of this suite; {nearest(name, known)}")
    return [part for part in known if part in names or not names]


class TableType(StrEnum):
    """Types of table weights."""

    float32 = "float32"
    float16 = "float16"


@bench.command()
def data(
    rows: Annotated[int, typer.Option(min=1, help="Rows of generated Criteo text.")] = 10_000_000,
    only: Annotated[DataBenchPart | None, typer.Option(help="Measure one part alone.")] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Folder for the data, kept and reused [default: the system's temporary]."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of the loaders.")] = 5,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rows prepared and samples loaded a second, beside polars and pyarrow."""
    import tempfile

    from megalith.bench.data import bench_data

    folder = workdir or Path(tempfile.gettempdir()) / "megalith-bench"

    content = bench_data(rows, folder, only.value if only else None, repeats, _say)
    _finish(content, out, as_json, show_data)


@bench.command()
def embedding(
    peer: PeerOption = None,
    shapes: Annotated[ShapeSet, typer.Option(help="Which shapes to measure.")] = ShapeSet.headline,
    tables: Annotated[int, typer.Option(min=1, help="Tables, each looked up by one feature.")] = 26,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each table, at most.")] = 500_000,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds, each over three batches.")] = 5,
    threads: ThreadsOption = None,
    dtype: Annotated[TableType, typer.Option(help="Type of the weights.")] = TableType.float32,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Lookup, backward and row-wise AdaGrad over many tables, beside FBGEMM and torch."""
    from megalith.bench.embedding.suite import bench_embedding
    from megalith.bench.peers.candidates import PEERS, choose_peers
    from megalith.bench.peers.lookup import LookupShape

    base = LookupShape(tables, rows, dim=64, batch=batch, lookups=1, dtype=dtype.value)
    content = bench_embedding(shapes.value, base, choose_peers(peer or [], PEERS), repeats, threads, _say)
    _finish(content, out, as_json, show_embedding)


@bench.command()
def tiers(
    peer: PeerOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Measure this part alone, or several as a,b: {', '.join(TierPart)} [default: all]."
        ),
    ] = None,
    touched: Annotated[
        str, typer.Option(help="Bytes of rows that are trained, with their state.")
    ] = "192MiB",
    declared: Annotated[float, typer.Option(min=1, help="Rows there are, in times of those.")] = 2,
    cache: Annotated[str, typer.Option(help="Bytes of rows that are kept in memory.")] = "64MiB",
    limit: Annotated[
        str | None,
        typer.Option(help="Memory of a process with rows on disk [default: the cache and 1 GiB]."),
    ] = None,
    features: Annotated[int, typer.Option(min=1, help="Features, each with a table.")] = 26,
    dim: Annotated[int, typer.Option(min=1, help="Columns of each table.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 2048,
    window: Annotated[int, typer.Option(min=0, help="Batches that look-ahead knows.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round.")] = 50,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before the first round.")] = 50,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 3,
    threads: ThreadsOption = None,
    workdir: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure [default: the system's temporary].")
    ] = None,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Tables beyond memory, beside the same in memory, a memory-mapped file and RocksDB."""
    import tempfile

    import torch

    from megalith.bench.peers.candidates import choose_peers
    from megalith.bench.tiers.stream import TierStream
    from megalith.bench.tiers.suite import PEERS, TierSettings, bench_tiers
    from megalith.core.units import parse_bytes

    parts = chosen_parts(only or [])
    rows = max(100, parse_bytes(touched) // (features * (dim * 4 + 4)))
    cache_bytes = parse_bytes(cache)
    with tempfile.TemporaryDirectory(prefix="megalith-tiers-", dir=workdir) as folder:
        settings = TierSettings(
            stream=TierStream(features, rows, int(rows * declared), dim, batch),
            cache_bytes=cache_bytes,
            limit_bytes=parse_bytes(limit) if limit else cache_bytes + (1 << 30),
            folder=Path(folder),
            steps=steps,
            repeats=repeats,
            warmup=warmup,
            window=window,
            threads=threads or torch.get_num_threads(),
        )
        content = bench_tiers(settings, parts, choose_peers(peer or [], PEERS), _say)
    _finish(content, out, as_json, show_tiers)


@bench.command()
def train(
    peer: PeerOption = None,
    lookups: Annotated[int, typer.Option(min=1, help="Ids of each feature of a sample.")] = 1,
    tables: Annotated[int, typer.Option(min=1, help="Tables, each looked up by one feature.")] = 26,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each table.")] = 200_000,
    dim: Annotated[int, typer.Option(min=1, help="Columns of each table.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds, each over three batches.")] = 5,
    threads: ThreadsOption = None,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Processes that share the batch, each with --threads or one.")
    ] = None,
    sharding: Annotated[
        BenchSharding, typer.Option(help="How tables are cut over --ranks; auto asks the planner.")
    ] = BenchSharding.table_wise,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """A whole training step of DLRM, beside TorchRec and torch; over processes with --ranks."""
    from megalith.bench.peers.candidates import choose_peers
    from megalith.bench.peers.lookup import LookupShape

    shape = LookupShape(tables, rows, dim, batch, lookups)
    if ranks is not None:
        from megalith.bench.train.ranks import PEERS as RANK_PEERS
        from megalith.bench.train.ranks import bench_ranks

        peers = choose_peers(peer or [], RANK_PEERS)
        content = bench_ranks(shape, ranks, sharding.value, peers, repeats, threads, _say)
        _finish(content, out, as_json, show_train)
        return
    from megalith.bench.train.suite import PEERS, bench_train

    content = bench_train(shape, choose_peers(peer or [], PEERS), repeats, threads, _say)
    _finish(content, out, as_json, show_train)


@bench.command()
def predict(
    rows: Annotated[int, typer.Option(min=1, help="Rows of generated clicks to score.")] = 500_000,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows scored at once [default: as `megalith eval`].")
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Folder for data and model, kept and reused [default: the system's temporary]."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    threads: ThreadsOption = None,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rows scored a second from prepared data and raw Parquet, beside the bare forward pass."""
    import tempfile

    from megalith.bench.predict import bench_predict

    folder = workdir or Path(tempfile.gettempdir()) / "megalith-bench"
    _finish(bench_predict(rows, folder, repeats, threads, batch, _say), out, as_json, show_predict)


@bench.command()
def explore(
    names: Annotated[
        list[str] | None, typer.Argument(help="Scenarios [default: three of 98,304 GPUs].")
    ] = None,
    predictions: Annotated[int, typer.Option(min=1, help="Random plans predicted of each.")] = 50,
    repeats: Annotated[int, typer.Option(min=1, help="Starts of the command.")] = 5,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start, prediction and joint search of the Explorer, against what is asked of it."""
    from megalith.bench.explore import LARGE, bench_explore

    _finish(bench_explore(names or LARGE, predictions, repeats, _say), out, as_json, show_explore)


@bench.command()
def plan(
    tables: Annotated[int | None, typer.Option(min=1, help="One set of so many tables [default: 3].")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Workers for --tables.")] = 128,
    global_batch: Annotated[int, typer.Option(min=1, help="Samples of a step for --tables.")] = 65536,
    hardware: Annotated[str, typer.Option(help="A cluster of the catalog.")] = "zionex",
    seeds: Annotated[int, typer.Option(min=1, help="Sets drawn of each size.")] = 2,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Instead: predict and run 20 plans on so many processes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random ones among the plans of --ranks.")] = 0,
    small: Annotated[bool, typer.Option("--small", help="Steps of a few milliseconds for --ranks.")] = False,
    out: OutOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Plans of generated tables: how far from the bound, how long it takes, against greedy."""
    from megalith.bench.plan import SHAPES, bench_plan

    if ranks is not None:
        from megalith.bench.plan_ranking import bench_ranking

        size: Literal["large", "small"] = "small" if small else "large"
        _finish(bench_ranking(ranks, seed=seed, size=size, say=_say), out, as_json, show_ranking)
        return

    shapes = SHAPES if tables is None else [(tables, workers, global_batch)]
    _finish(bench_plan(shapes, hardware, seeds, say=_say), out, as_json, show_plan)


def _say(message: str) -> None:
    note((message, "dim"))


def _finish(
    content: dict[str, Any], out: Path | None, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> None:
    from megalith.bench.runner import save_result

    if out is not None:
        save_result(out, content)
    if as_json:
        print_json(content)
    else:
        show(content["results"])
