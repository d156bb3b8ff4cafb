"""The loaders of a run: which splits of a prepared data set it reads, in what order, and a rank's share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from megalith.comm.ranks import Ranks
from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.data.dataset import Dataset
from megalith.data.growing import GrowingConfig, GrowingLoader
from megalith.data.growing.ledger import FileLedger
from megalith.data.ingest import RawDataset, RawFilesConfig, StoredDataset
from megalith.data.ingest.index import IndexFile
from megalith.data.loader import Loader
from megalith.data.loader.decode import RowReader
from megalith.data.loader.readers import WindowReaders
from megalith.data.places import is_remote


class DataConfig(Config):
    """Which data to read, and how."""

    path: Path
    """The folder of a prepared data set, from `megalith data prepare` or `data synth`; with `raw`, raw files:
    one, a folder or a pattern."""
    raw: RawFilesConfig | None = None
    """What becomes of raw files."""
    growing: GrowingConfig | None = None
    """Files are added to `path` while the run trains; needs `raw`."""
    train: tuple[str, ...] = Field(default=("train",), min_length=1)
    """Splits to train on; several are read as one."""
    eval: str | None = None
    """The split to evaluate on; None takes `valid`, else `test`, if there is one."""
    batch_size: int = Field(default=2048, ge=1)
    """Samples of a step, on all ranks together."""
    eval_batch_size: int = Field(default=8192, ge=1)
    """Samples that are scored at once; results do not depend on it."""
    shuffle: bool = True
    """Whether each epoch has an order of its own; else that of the files."""
    shuffle_window_rows: int = Field(default=262_144, ge=1)
    """Rows that are shuffled as one, after the order of row groups was; more mix better and take memory."""
    threads: int = Field(default=2, ge=1, le=1024)
    """Threads that decode rows."""
    prefetch: int = Field(default=4, ge=1, le=1024)
    """Windows that are kept ready."""

    @model_validator(mode="after")
    def _raw_files_grow(self) -> DataConfig:
        if self.growing is not None and self.raw is None:
            raise ValueError("growing is for raw files: say with raw what becomes of them")
        return self


def open_dataset(config: DataConfig, kept: Path | None = None, index: Path | None = None) -> Dataset:
    """The data of a recipe.

    Of raw files a run that is resumed has the schema in `kept`, and in `index` where their rows begin.
    """
    if config.raw is None:
        return StoredDataset(config.path) if is_remote(config.path) else Dataset(config.path)
    return RawDataset(config.path, config.raw, kept=kept, index=IndexFile(index))


def train_loader(
    config: DataConfig,
    dataset: Dataset,
    ranks: Ranks,
    seed: int,
    readers: WindowReaders | None = None,
    ledger: Path | None = None,
) -> Loader | GrowingLoader:
    """Shuffled batches of the training splits; each rank reads its slice of every batch.

    `readers` are those of a tier; None are threads of this process. `ledger` is the file in which a run keeps
    what it has taken of data that grows.
    """
    if config.growing is not None:
        assert isinstance(dataset, RawDataset)
        if ranks.world_size > 1:
            raise ConfigError(
                "data.growing is for a run of one process, which takes files in one order; train without "
                "torchrun, or on the files that are there without data.growing."
            )
        return GrowingLoader(
            dataset,
            config.growing,
            config.batch_size,
            FileLedger(ledger),
            shuffle=config.shuffle,
            seed=seed,
            prefetch=config.prefetch,
            threads=config.threads,
            shuffle_window_rows=config.shuffle_window_rows,
            readers=readers,
        )
    return Loader(
        dataset,
        config.train,
        config.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        share="slices",
        shuffle=config.shuffle,
        seed=seed,
        prefetch=config.prefetch,
        threads=config.threads,
        shuffle_window_rows=config.shuffle_window_rows,
        rows=raw_rows(dataset, config.train),
        readers=readers,
    )


def eval_loader(config: DataConfig, dataset: Dataset, split: str, ranks: Ranks) -> Loader:
    """All rows of a split once, in file order; ranks take whole batches in turn."""
    return Loader(
        dataset,
        [split],
        config.eval_batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        share="batches",
        shuffle=False,
        drop_last=False,
        prefetch=config.prefetch,
        threads=config.threads,
        epochs=1,
        rows=raw_rows(dataset, [split]),
    )


def raw_rows(dataset: Dataset, splits: Sequence[str]) -> RowReader | None:
    """The rows of splits that are in raw files; None of prepared ones."""
    return dataset.rows(splits) if isinstance(dataset, RawDataset) else None


def check_event_times(tables: Sequence[TableSpec], dataset: Dataset) -> None:
    """Refuses tables whose ids expire by event time on data that has none."""
    name = next((table.name for table in tables if table.expires_by_time), None)
    if name is not None and dataset.schema.event_time is None:
        raise ConfigError(
            f"Ids of table '{name}' expire by event time (expiry.seconds), which {dataset.folder} does not "
            "have; prepare it with --event-time COLUMN, or expire by batches."
        )


def choose_split(config: DataConfig, dataset: Dataset) -> str | None:
    """The split that evaluation reads: the recipe's, else `valid`, else `test`, if it has rows."""
    if config.eval is not None:
        dataset.split(config.eval)
        return config.eval
    splits = dataset.schema.splits
    return next((name for name in ("valid", "test") if name in splits and dataset.split(name).rows), None)
