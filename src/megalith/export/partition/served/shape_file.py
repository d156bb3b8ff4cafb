"""Models to serve that were never trained here: tables in a YAML file, and the widths of the dense part.

The file is one of those that `megalith plan --tables` reads (`sharding/planner/table_file.py`), with a
mapping `dense:` beside the tables. Published models ship in `export/shapes`; those of the planner have no
dense part, and a layer of one column over their vectors stands in for it.
"""

from __future__ import annotations

from pathlib import Path

from megalith.core.config import load_yaml, parse_config
from megalith.core.errors import ConfigError
from megalith.export.partition.served.dense_work import DenseShape, work_of_shape
from megalith.export.partition.served.model import ServedModel
from megalith.export.partition.served.table_specs import served_tables
from megalith.sharding.planner.table_file import read_table_file

SHAPES = Path(__file__).parents[2] / "shapes"


def shape_names() -> list[str]:
    """The models that ship with the package."""
    return sorted(path.stem for path in SHAPES.glob("*.yaml"))


def shipped_shape(name: str) -> Path | None:
    """The file of a model that ships with the package."""
    return SHAPES / f"{name}.yaml" if name in shape_names() else None


def served_shape(path: Path, precision: str = "int8", dense_precision: str = "int8") -> ServedModel:
    """The model that a file describes, with tables and linear layers of these precisions."""
    file = read_table_file(path)
    content = load_yaml(path)
    described = content.get("dense") or {}
    if not isinstance(described, dict):
        raise ConfigError(
            f"{path}: dense must be a mapping, such as {{inputs: 13, bottom: [64], top: [64]}}."
        )
    shape = parse_config(DenseShape, described, f"{path}, dense")
    lookups = {name: known.lookups for name, known in file.statistics.items()}
    tables = served_tables(file.tables, lookups, precision)
    dims = [table.dim for table in file.tables for _feature in table.features]
    return ServedModel(path.stem, tables, work_of_shape(shape, dims, dense_precision), precision)
