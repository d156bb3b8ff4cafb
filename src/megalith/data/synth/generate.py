"""Writes a generated data set: Parquet that is ready to train on, or text for `megalith data prepare`.

Threads make row groups while the calling thread writes them in order, so the bytes do not depend on the
number of threads and memory holds a few row groups however many rows there are.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.errors import ConfigError
from megalith.core.files import new_folder, write_atomic
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import FIRST_ID, DatasetSchema, Split, write_schema
from megalith.data.synth.options import SPLITS, SynthOptions
from megalith.data.synth.stream import BLOCK_ROWS, SynthBlock, SynthStream
from megalith.data.synth.text import AVAZU_START, LineFormatter
from megalith.data.synth.truth import entropy, log_loss_sum

ROW_GROUP_ROWS = 65_536
"""Fewer where rows are wide."""
ROW_GROUPS_PER_PART = 16
TRUTH_FILE = "truth.json"
TRUE_PROBABILITY = "true_probability"
EVENT_TIME = "event_time"
_FIRST_SECOND = int(AVAZU_START.replace(tzinfo=UTC).timestamp())
_BLOCKS_PER_GROUP = ROW_GROUP_ROWS // BLOCK_ROWS

HOUR_PARTS: dict[str, Callable[[NDArray[np.int32]], NDArray[np.int32]]] = {
    "hour_of_day": lambda ids: (ids - FIRST_ID) % 24 + FIRST_ID,
    "weekday": lambda ids: ((ids - FIRST_ID) // 24 + AVAZU_START.weekday()) % 7 + FIRST_ID,
}
"""What `megalith data prepare` makes of an hour: a model cannot learn an hour that never comes again."""

OutputFormat = Literal["parquet", "text"]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SplitTruth:
    """What is known of a generated split."""

    rows: int
    positives: int
    best_log_loss: float
    """Log loss of the planted probabilities on the labels drawn from them."""
    best_ne: float
    """The same, relative to always predicting the split's click rate."""


@dataclass(frozen=True, slots=True)
class _Group:
    """One row group, ready to write."""

    content: Any
    """A record batch or bytes; dropped once written."""
    rows: int
    positives: int
    log_loss_sum: float


def generate(
    options: SynthOptions,
    out: Path,
    output_format: OutputFormat = "parquet",
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress = lambda rows: None,
) -> dict[str, SplitTruth]:
    """Generates all splits into the folder `out`, which appears when it is complete.

    >>> generate(SynthOptions("criteo", train_rows=1_000_000), Path("data"))  # doctest: +SKIP
    """
    options.check()
    if output_format == "text" and options.multi_hot:
        raise ConfigError("Text has no multi-hot columns; leave out --multi-hot or choose --format parquet.")
    if output_format == "text" and options.tables:
        raise ConfigError(f"{options.source} has no text of its own; leave out --format.")
    if output_format == "text" and options.days:
        raise ConfigError("Text has no event time; leave out --days or choose --format parquet.")
    with new_folder(out, overwrite) as folder:
        stream = SynthStream(options)
        write = _write_text if output_format == "text" else _write_parquet
        workers = threads or min(os.cpu_count() or 1, 8)
        with ThreadPoolExecutor(workers) as pool:
            truths, names = {}, {}
            for split in SPLITS:
                if options.rows[split]:
                    truths[split], names[split] = write(stream, split, folder, pool, workers, progress)
        description = {
            "options": options.to_dict(),
            "splits": {name: asdict(truth) for name, truth in truths.items()},
        }
        if output_format == "text":
            write_atomic(folder / TRUTH_FILE, json.dumps(description, indent=1) + "\n")
        else:
            write_schema(folder, _schema(stream, truths, names))
    return truths


def _write_parquet(
    stream: SynthStream, split: str, folder: Path, pool: ThreadPoolExecutor, workers: int, progress: Progress
) -> tuple[SplitTruth, list[str]]:
    (folder / split).mkdir()
    schema = _arrow_schema(stream)
    before = _rows_before(stream, split)

    def batch(stream: SynthStream, blocks: list[SynthBlock], first_row: int) -> pa.RecordBatch:
        return _record_batch(stream, blocks, before + first_row)

    made, names, writer = [], [], None
    try:
        for number, group in enumerate(_in_order(stream, split, pool, workers, batch)):
            if number % ROW_GROUPS_PER_PART == 0:
                if writer is not None:
                    writer.close()
                names.append(f"{split}/part-{number // ROW_GROUPS_PER_PART:05d}.parquet")
                # Ids are drawn at random: dictionaries and statistics would cost time and save little.
                writer = pq.ParquetWriter(
                    folder / names[-1],
                    schema,
                    compression="lz4",
                    use_dictionary=False,
                    write_statistics=False,
                )
            assert writer is not None
            writer.write_batch(group.content, row_group_size=_row_group_rows(stream))
            made.append(replace(group, content=None))
            progress(group.rows)
    finally:
        if writer is not None:
            writer.close()
    return _truth(made), names


def _write_text(
    stream: SynthStream, split: str, folder: Path, pool: ThreadPoolExecutor, workers: int, progress: Progress
) -> tuple[SplitTruth, list[str]]:
    text = LineFormatter(stream)
    before = _rows_before(stream, split)

    def lines(stream: SynthStream, blocks: list[SynthBlock], first_row: int) -> bytes:
        parts = []
        for block in blocks:
            parts.append(text.lines(block, before + first_row))
            first_row += len(block.labels)
        return b"".join(parts)

    name = f"{split}.{text.extension}"
    made = []
    with (folder / name).open("wb") as file:
        file.write(text.header())
        for group in _in_order(stream, split, pool, workers, lines):
            file.write(group.content)
            made.append(replace(group, content=None))
            progress(group.rows)
    return _truth(made), [name]


def _row_group_rows(stream: SynthStream) -> int:
    return _BLOCKS_PER_GROUP * stream.block_rows


def _rows_before(stream: SynthStream, split: str) -> int:
    """Rows of the splits before one."""
    return sum(stream.options.rows[name] for name in SPLITS[: SPLITS.index(split)])


def _event_times(options: SynthOptions, first_row: int, rows: int) -> NDArray[np.int64]:
    """When rows happened: all rows are spread evenly over the days, in their order."""
    numbers = np.arange(first_row, first_row + rows, dtype=np.int64)
    return _FIRST_SECOND + numbers * (86400 * options.days) // options.total_rows


def _in_order(
    stream: SynthStream,
    split: str,
    pool: ThreadPoolExecutor,
    workers: int,
    build: Callable[[SynthStream, list[SynthBlock], int], Any],
) -> Iterator[_Group]:
    """Row groups of a split in order, a few ahead of the writer."""

    def make(number: int) -> _Group:
        first = number * _BLOCKS_PER_GROUP
        last = min(first + _BLOCKS_PER_GROUP, stream.blocks(split))
        blocks = [stream.block(split, block) for block in range(first, last)]
        return _Group(
            content=build(stream, blocks, number * _row_group_rows(stream)),
            rows=sum(len(block.labels) for block in blocks),
            positives=int(sum(block.labels.sum() for block in blocks)),
            log_loss_sum=sum(log_loss_sum(block.labels, block.probabilities) for block in blocks),
        )

    groups = -(-stream.options.rows[split] // _row_group_rows(stream))
    ahead: deque[Future[_Group]] = deque()
    for number in range(groups):
        ahead.append(pool.submit(make, number))
        if len(ahead) > workers:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _record_batch(stream: SynthStream, blocks: list[SynthBlock], first_row: int) -> pa.RecordBatch:
    def joined(columns: Iterator[np.ndarray]) -> pa.Array:
        return pa.array(np.concatenate(list(columns)))

    arrays = [joined(block.labels for block in blocks)]
    if stream.options.days:
        arrays.append(pa.array(_event_times(stream.options, first_row, len(arrays[0]))))
    arrays += [
        joined(block.logs[position] for block in blocks) for position in range(len(stream.shape.numeric))
    ]
    for position, field in enumerate(stream.fields):
        if field.shape.text == "hour":
            arrays += [joined(part(block.ids[position]) for block in blocks) for part in HOUR_PARTS.values()]
        else:
            arrays.append(joined(block.ids[position] for block in blocks))
    for position in range(len(stream.bag_fields)):
        bags = [block.bags[position] for block in blocks]
        lists = [pa.ListArray.from_arrays(pa.array(bag.offsets), pa.array(bag.ids)) for bag in bags]
        arrays.append(pa.concat_arrays(lists))
    arrays.append(joined(block.probabilities for block in blocks))
    return pa.record_batch(arrays, schema=_arrow_schema(stream))


def _arrow_schema(stream: SynthStream) -> pa.Schema:
    columns = [("label", pa.float32())]
    columns += [(EVENT_TIME, pa.int64())] if stream.options.days else []
    columns += [(shape.name, pa.float32()) for shape in stream.shape.numeric]
    columns += [(feature.name, pa.int32()) for feature in _one_hot(stream)]
    columns += [(field.shape.name, pa.list_(pa.int32())) for field in stream.bag_fields]
    return pa.schema([*columns, (TRUE_PROBABILITY, pa.float32())])


def _one_hot(stream: SynthStream) -> list[FeatureSpec]:
    features = []
    for field in stream.fields:
        if field.shape.text == "hour":
            features += [FeatureSpec(name="hour_of_day", num_ids=24 + FIRST_ID)]
            features += [FeatureSpec(name="weekday", num_ids=7 + FIRST_ID)]
        else:
            features.append(FeatureSpec(name=field.shape.name, num_ids=field.cardinality + FIRST_ID))
    return features


def _schema(stream: SynthStream, truths: dict[str, SplitTruth], names: dict[str, list[str]]) -> DatasetSchema:
    multi_hot = [
        FeatureSpec(name=field.shape.name, num_ids=field.cardinality + FIRST_ID, max_length=lengths.longest)
        for field, lengths in zip(stream.bag_fields, stream.bag_lengths, strict=True)
    ]
    return DatasetSchema(
        source=f"synth-{stream.options.source}",
        event_time=EVENT_TIME if stream.options.days else None,
        numeric=tuple(shape.name for shape in stream.shape.numeric),
        categorical=(*_one_hot(stream), *multi_hot),
        splits={
            split: Split(
                rows=truth.rows,
                positives=truth.positives,
                files=tuple(names[split]),
                best_log_loss=truth.best_log_loss,
            )
            for split, truth in truths.items()
        },
        preparation={"synth": stream.options.to_dict(), "numeric": "log"},
    )


def _truth(groups: list[_Group]) -> SplitTruth:
    rows = sum(group.rows for group in groups)
    positives = sum(group.positives for group in groups)
    best = sum(group.log_loss_sum for group in groups) / rows
    average = entropy(positives / rows)
    return SplitTruth(rows, positives, best, best / average if average else 1.0)
