"""`megalith bench data`: how fast click data is prepared and loaded, beside what one would otherwise write.

Prepare: text to Parquet by `megalith data prepare criteo`, as a process of its own, beside the same work in
polars. Loader: samples a second out of that Parquet, beside a plain loop over a pyarrow data set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from megalith.bench.runner import Process, interleave, result, run_process
from megalith.core.errors import MegalithError

if TYPE_CHECKING:
    from megalith.data.batch import Batch
    from megalith.data.dataset import Dataset
    from megalith.data.loader import Loader

DataPart = Literal["prepare", "loader"]
Say = Callable[[str], None]

PREPARE, POLARS = "megalith data prepare", "polars"
LOADER, LOADER_IN_ORDER = "megalith, shuffled", "megalith, in order"
PYARROW = "pyarrow, in order"
BATCH_SIZES = (2048, 8192)
_MIN_COUNT = 10
_SAMPLES_A_ROUND = 4_000_000
_MEGALITH = (sys.executable, "-m", "megalith")


def bench_data(
    rows: int, workdir: Path, only: DataPart | None = None, repeats: int = 5, say: Say = lambda _: None
) -> dict[str, Any]:
    """Measures one part or both, in `workdir`, and reuses the data that an earlier run left there."""
    workdir.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    prepared = workdir / f"prepared-{rows}"
    if only != "loader" or not prepared.exists():
        results["generate"] = _generate(rows, workdir, say)
    if only != "loader":
        results["prepare"] = _prepare(rows, workdir, prepared, say)
    elif not prepared.exists():
        say(f"preparing {rows:,} rows")
        run_process(_prepare_command(_text(rows, workdir), prepared))
    if only != "prepare":
        results["loader"] = _loader(prepared, repeats, say)
    return result("data", {"rows": rows, "repeats": repeats}, results, workdir)


def _text(rows: int, workdir: Path) -> Path:
    return workdir / f"text-{rows}" / "train.tsv"


def _generate(rows: int, workdir: Path, say: Say) -> dict[str, Any]:
    text = _text(rows, workdir)
    about: dict[str, Any] = {"rows": rows, "reused": text.exists()}
    if not text.exists():
        say(f"generating {rows:,} rows of text")
        only_train = ("--valid-rows", "0", "--test-rows", "0")
        options = ("--rows", str(rows), *only_train, "--format", "text", "--out", str(text.parent), "--json")
        process = run_process([*_MEGALITH, "data", "synth", "criteo", *options])
        about |= {"seconds": process.seconds, "rows_per_second": rows / process.seconds}
    return {**about, "bytes": text.stat().st_size}


def _prepare_command(text: Path, out: Path) -> list[str]:
    options = ("--min-count", str(_MIN_COUNT), "--out", str(out), "--overwrite", "--json")
    return [*_MEGALITH, "data", "prepare", "criteo", str(text), *options]


def _prepare(rows: int, workdir: Path, prepared: Path, say: Say) -> dict[str, Any]:
    text = _text(rows, workdir)
    candidates = {PREPARE: _prepare_command(text, prepared)}
    if find_spec("polars"):
        target = workdir / "polars.parquet"
        arguments = (str(text), str(target), str(_MIN_COUNT))
        candidates[POLARS] = [sys.executable, "-m", "megalith.bench.peers.polars_prepare", *arguments]
    _warm(text)
    measured: dict[str, Any] = {}
    for name, command in candidates.items():
        say(f"preparing {rows:,} rows: {name}")
        try:
            process = run_process(command)
        except MegalithError as error:
            # A peer that runs out of memory is a result; our own failure is an error.
            if name == PREPARE:
                raise
            measured[name] = {"failed": str(error)}
            continue
        measured[name] = _prepare_row(rows, process)
    (workdir / "polars.parquet").unlink(missing_ok=True)
    ours, peer = measured[PREPARE], measured.get(POLARS, {})
    if "rows_per_second" in peer:
        measured["speed_ratio"] = ours["rows_per_second"] / peer["rows_per_second"]
        measured["cpu_ratio"] = peer["cpu_seconds"] / ours["cpu_seconds"]
        measured["memory_ratio"] = ours["max_resident_bytes"] / peer["max_resident_bytes"]
    return measured


def _warm(path: Path) -> None:
    """Reads a file once, so that the candidate that goes first does not pay for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def _prepare_row(rows: int, process: Process) -> dict[str, Any]:
    return {
        "seconds": process.seconds,
        "cpu_seconds": process.cpu_seconds,
        "rows_per_second": rows / process.seconds,
        "max_resident_bytes": process.max_resident_bytes,
    }


def _loader(prepared: Path, repeats: int, say: Say) -> dict[str, Any]:
    """Samples a second; every round opens the data anew and reads the same number of samples."""
    from megalith.data.dataset import Dataset
    from megalith.data.loader import Loader

    dataset = Dataset(prepared)
    samples = min(dataset.split("train").rows, _SAMPLES_A_ROUND)
    sizes = [size for size in BATCH_SIZES if size <= samples] or [samples]
    makers: dict[str, Callable[[], Iterator[Batch]]] = {}
    for size in sizes:
        makers[_name(LOADER, size)] = partial(_next_epoch, Loader(dataset, ["train"], size))
        makers[_name(LOADER_IN_ORDER, size)] = partial(
            _next_epoch, Loader(dataset, ["train"], size, shuffle=False)
        )
        makers[_name(PYARROW, size)] = partial(_pyarrow_batches, dataset, size)
    say(f"loading {samples:,} samples a round")
    timings = interleave({name: partial(_drain, make, samples) for name, make in makers.items()}, repeats)
    measured: dict[str, Any] = {
        name: {"samples_per_second": timing.rate(samples), **timing.to_dict()}
        for name, timing in timings.items()
    }
    ratios = {
        f"{ours}, batch {size}": timings[_name(PYARROW, size)].median / timings[_name(ours, size)].median
        for ours in (LOADER, LOADER_IN_ORDER)
        for size in sizes
    }
    return {"samples_a_round": samples, "candidates": measured, "speed_ratio_to_pyarrow": ratios}


def _name(candidate: str, batch_size: int) -> str:
    return f"{candidate}, batch {batch_size}"


def _next_epoch(loader: Loader) -> Iterator[Batch]:
    loader.set_epoch(loader.epoch + 1)
    return iter(loader)


def _drain(make: Callable[[], Iterator[Batch]], samples: int) -> None:
    # The rows that do not fill a batch do not count against a loader that drops them.
    for batch in make():
        samples -= batch.batch_size
        if samples < batch.batch_size:
            return


def _pyarrow_batches(dataset: Dataset, batch_size: int) -> Iterator[Batch]:
    """What one writes without a loader: file order, all of Arrow's threads and readahead, no checks."""
    import numpy as np
    import pyarrow.dataset as arrow
    import torch

    from megalith.data.batch import Batch

    schema = dataset.schema
    names = [schema.label, *schema.numeric, *schema.feature_names]
    source = arrow.dataset([str(path) for path in dataset.files("train")], format="parquet")
    for record in source.to_batches(columns=names, batch_size=batch_size):
        columns = {name: record.column(name).to_numpy() for name in names}
        values = np.concatenate([columns[name] for name in schema.feature_names]).astype(np.int64)
        yield Batch(
            dense=torch.from_numpy(np.stack([columns[name] for name in schema.numeric], axis=1)),
            values=torch.from_numpy(values),
            # By numpy: torch would spread this over threads, which costs more than it saves.
            offsets=torch.from_numpy(np.arange(len(values) + 1)),
            labels=torch.from_numpy(columns[schema.label].copy()),
        )
