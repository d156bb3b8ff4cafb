"""Tables described in a YAML file: what `megalith plan --tables` reads.

A list under `tables:`, each as TableSpec and, if known, `lookups` (ids a sample), `skew` (Zipf) and `count`
(so many alike); beside it `optimizer`, `batch_size` (of a worker), `exchange`, and of the rest of the model
`numbers` (of a sample) and `mflops_per_sample` (of its layers, forward). Tables of published models ship with
the package, in `sharding/models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.core.config import load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import TableSpec
from megalith.sharding import models
from megalith.sharding.plan import ExchangeConfig
from megalith.sharding.planner.statistics import DEFAULT_SKEW, TableStatistics, zipf_statistics


@dataclass(frozen=True, slots=True)
class TableFile:
    """What a file says of a model."""

    tables: tuple[TableSpec, ...]
    statistics: Mapping[str, TableStatistics]
    optimizer: str
    batch_size: int
    """Samples of one worker."""
    exchange: ExchangeConfig | None
    numbers: int = 0
    """Numeric features of a sample."""
    mflops_per_sample: float | None = None
    """Of the layers, forward; None where the file does not say."""


def find_table_file(name_or_path: str) -> Path:
    """A YAML file, or one of those that ship with the package."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        return path
    shipped = {file.stem: file for folder in models.__path__ for file in sorted(Path(folder).glob("*.yaml"))}
    if name_or_path not in shipped:
        raise ConfigError(
            f"No tables '{name_or_path}': {nearest(name_or_path, list(shipped))} A path must end in .yaml."
        )
    return shipped[name_or_path]


def read_table_file(path: Path) -> TableFile:
    """The tables of a file, or one sentence that names what is wrong in it."""
    content = load_yaml(path)
    listed = content.get("tables")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path} has no list of tables; write them under `tables:`.")
    tables, statistics = [], {}
    for number, entry in enumerate(listed):
        for table, known in _read_entry(entry, f"{path}, tables.{number}"):
            tables.append(table)
            statistics[table.name] = known
    exchange = content.get("exchange")
    numbers, mflops = content.get("numbers", 0), content.get("mflops_per_sample")
    if not isinstance(numbers, int) or not isinstance(mflops, (int, float, type(None))):
        raise ConfigError(f"{path}: numbers must be a whole number and mflops_per_sample a number.")
    return TableFile(
        tables=tuple(tables),
        statistics=statistics,
        optimizer=str(content.get("optimizer", "rowwise_adagrad")),
        batch_size=int(content.get("batch_size", 2048)),
        exchange=None if exchange is None else parse_config(ExchangeConfig, exchange, f"{path}, exchange"),
        numbers=numbers,
        mflops_per_sample=None if mflops is None else float(mflops),
    )


def _read_entry(entry: Any, where: str) -> list[tuple[TableSpec, TableStatistics]]:
    """The tables of one entry, `count` of them alike."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be a mapping with name, rows and dim.")
    settings = dict(entry)
    lookups, skew = settings.pop("lookups", None), settings.pop("skew", DEFAULT_SKEW)
    count = settings.pop("count", 1)
    if not isinstance(skew, (int, float)) or not isinstance(lookups, (int, float, type(None))):
        raise ConfigError(f"{where}: lookups and skew must be numbers.")
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"{where}: count must be a whole number from 1.")
    names = [f"{settings.get('name', '')}{number}" for number in range(count)] if count > 1 else []
    tables = []
    for described in [{**settings, "name": name} for name in names] or [settings]:
        table = parse_config(TableSpec, {"features": (described.get("name", ""),), **described}, where)
        ids = table.store_spec.ids
        if ids is not None:
            if ids.bound is None:
                raise ConfigError(
                    f"{where}: the rows of a dynamic table are its bound; give bound, not bound_bytes."
                )
            table = table.model_copy(update={"rows": ids.bound})
        mean_ids = float(lookups) if lookups is not None else float(len(table.features))
        tables.append((table, zipf_statistics(table.rows, mean_ids, float(skew))))
    return tables
