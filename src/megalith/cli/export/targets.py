"""What `megalith export MODEL --hardware NAME` may be given, from a frozen model to a list of tables.

DIR with manifest.json     a frozen model
DIR with config.yaml       a run
FILE.yaml                  a recipe or, where it lists tables, tables and the widths of a dense part
NAME                       a shape that ships (rm1, dlrm-v2, ...), tables of the planner, a recipe
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megalith.export.partition.served.model import ServedModel
    from megalith.hardware.cluster import Cluster

MANIFEST = "manifest.json"


def find_model(target: str, cluster: Cluster, tables: str | None, dense: str | None) -> ServedModel:
    """The model of that name or path; precisions are those asked for, a frozen model's own, or int8."""
    from megalith.core.config import load_yaml
    from megalith.export.partition.served.shape_file import served_shape, shipped_shape

    path = Path(target)
    if (path / MANIFEST).is_file():
        return _frozen(path, tables)
    precision = (tables or "int8", dense or "int8")
    if path.suffix in (".yaml", ".yml"):
        if "tables" in load_yaml(path):
            return served_shape(path, *precision)
    elif not (path / "config.yaml").is_file():
        shape = shipped_shape(target) or _planner_tables(target)
        if shape is not None:
            return served_shape(shape, *precision)
        _check_recipe(target)
    return _recipe(target, cluster, precision)


def _frozen(folder: Path, tables: str | None) -> ServedModel:
    from megalith.core.config import parse_config
    from megalith.core.errors import ServeError
    from megalith.core.files import read_json_object
    from megalith.export.manifest import DENSE_FILE, ModelManifest
    from megalith.export.partition.served.from_manifest import served_manifest
    from megalith.export.partition.shortage import with_precision

    path, fix = folder / MANIFEST, "export the model again"
    content = read_json_object(path, fix=fix, error=ServeError)
    model = served_manifest(
        parse_config(ModelManifest, content, str(path), fix, ServeError), folder / DENSE_FILE
    )
    return model if tables is None else with_precision(model, tables)


def _planner_tables(name: str) -> Path | None:
    """Tables that ship with the planner (neo-a, ...)."""
    from megalith.core.errors import ConfigError
    from megalith.sharding.planner.table_file import find_table_file

    try:
        return find_table_file(name)
    except ConfigError:
        return None


def _check_recipe(name: str) -> None:
    """Refuses a name that nothing has, and lists what there is."""
    from megalith.core.errors import ConfigError, nearest
    from megalith.export.partition.served.shape_file import shape_names
    from megalith.train.recipe import recipe_names

    names = sorted({*shape_names(), *recipe_names()})
    if name not in names:
        raise ConfigError(
            f"No model '{name}': {nearest(name, names)} Or name the folder of a frozen model or a run, or a "
            "YAML file."
        )


def _recipe(target: str, cluster: Cluster, precision: tuple[str, str]) -> ServedModel:
    """The model of a recipe or a run on its data, as training plans it; nothing is trained or read of it."""
    from megalith.core.errors import ConfigError
    from megalith.export.partition.served.dense_work import work_of_program
    from megalith.export.partition.served.model import ServedModel
    from megalith.export.partition.served.table_specs import served_tables
    from megalith.export.trace import trace_model
    from megalith.models.base import ModelInputs
    from megalith.models.registry import build_model
    from megalith.train.loaders import open_dataset
    from megalith.train.recipe import load_recipe
    from megalith.train.run.folder import RunFolder
    from megalith.train.sharding_plan import recipe_inputs

    recipe, run = load_recipe(target), RunFolder(Path(target))
    if recipe.model.kind == "custom":
        raise ConfigError(
            f"{target} has a model of your own; freeze it (`megalith export RUN --out DIR`), then name DIR."
        )
    dataset = run.inputs.dataset() if run.inputs.exists() else open_dataset(recipe.data)
    planned = recipe_inputs(recipe, dataset, cluster)
    lookups = {name: known.lookups for name, known in planned.statistics.items()}
    num_dense, features = len(dataset.schema.numeric), dataset.schema.categorical
    built = build_model(recipe.model, ModelInputs(num_dense, features))
    traced = trace_model(built, num_dense, sum(table.output_dim for table in planned.tables))
    shapes = {name: tuple(weight.shape) for name, weight in traced.weights.items()}
    return ServedModel(
        recipe.name,
        served_tables(planned.tables, lookups, precision[0], planned.adaptive_share),
        work_of_program(traced.program, shapes, num_dense, precision[1]),
        precision[0],
    )
