"""A tiny data set, its recipe, and plans of every kind, for training on several ranks."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from processes import on_ranks
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.comm.ranks import Ranks
from megalith.core.errors import PlanError
from megalith.core.files import read_jsonl
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import Dataset, DatasetSchema, Split, write_schema
from megalith.embeddings.table_state import TableState
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.train.checkpoints import open_learner
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.reporter import CLOCK_KEYS
from megalith.train.trainer import Trainer

KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")


def make_data(folder):
    """Criteo-shaped rows: 26 tables, 13 numbers."""
    arguments = ["--rows", "3000", "--valid-rows", "700", "--test-rows", "10", "--threads", "1"]
    result = CliRunner().invoke(app, ["data", "synth", "criteo", "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output


def make_weighted_bags(folder, shared=False):
    """Rows with a weight, two features of one id and one of none to three; two splits of the same kind.

    Two features have one vocabulary if it is `shared`.
    """
    generator = np.random.default_rng(0)
    vocabulary = "a" if shared else None
    features = (
        FeatureSpec(name="a", num_ids=50, vocabulary=vocabulary),
        FeatureSpec(name="many", num_ids=50 if shared else 40, max_length=3, vocabulary=vocabulary),
        FeatureSpec(name="b", num_ids=9),
    )
    splits = {}
    for name, rows in (("train", 1000), ("valid", 300)):
        bags = [generator.integers(0, 40, length) for length in generator.integers(0, 4, rows)]
        columns = {
            "label": generator.integers(0, 2, rows).astype(np.float32),
            "weight": generator.uniform(0.5, 2, rows).astype(np.float32),
            "number": generator.normal(size=rows).astype(np.float32),
            "a": generator.integers(0, 50, rows).astype(np.int32),
            "many": pa.array([bag.tolist() for bag in bags], pa.list_(pa.int32())),
            "b": generator.integers(0, 9, rows).astype(np.int32),
        }
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / name / "part.parquet", row_group_size=100)
        positives = float(columns["label"].sum())
        splits[name] = Split(rows=rows, positives=positives, files=(f"{name}/part.parquet",))
    schema = DatasetSchema(
        source="test", weight="weight", numeric=("number",), categorical=features, splits=splits
    )
    write_schema(folder, schema)


def make_recipe(path, data, **model):
    """12 steps an epoch of 250 samples, which neither 3 nor 4 ranks share evenly."""
    model = {"kind": "dlrm", "dim": 4, "bottom": {"layers": [16]}, "top": {"layers": [16]}, **model}
    loop = (
        "{epochs: 2, log_every: 3, eval_every: 7, checkpoint_every: 5, window_samples: 999, tensorboard: no}"
    )
    path.write_text(
        f"""
name: small
data: {{path: {data}, batch_size: 250, eval_batch_size: 150, threads: 1, prefetch: 1}}
model: {json.dumps(model)}
embeddings: {{optimizer: {{kind: rowwise_adagrad, lr: 0.05}}}}
train: {loop}
"""
    )
    return path


def write_plan(path, recipe, world_size, kinds=KINDS, turn=0):
    """Tables take the kinds in turn; another `turn` gives another plan."""
    settings = load_recipe(str(recipe))
    tables = settings.model.tables(Dataset(settings.data.path).schema.categorical)
    placements = []
    for number, table in enumerate(tables):
        kind = kinds[(number + turn) % len(kinds)]
        if table.rows < world_size or table.dim < world_size:
            kind = "table_wise"
        shards = _shards(kind, table, world_size, (number + turn) % world_size)
        placements.append(Placement(table=table.name, kind=kind, shards=shards))
    plan = ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=placements)
    plan.check(tables)
    plan.write(path)
    return path


def _shards(kind, table, world_size, worker):
    whole = {"rows": (0, table.rows), "columns": (0, table.dim)}
    if kind == "table_wise":
        return (Shard(worker=worker, **whole),)
    if kind == "data_parallel":
        return tuple(Shard(worker=one, **whole) for one in range(world_size))
    extent = table.rows if kind == "row_wise" else table.dim
    bounds = [extent * one // world_size for one in range(world_size + 1)]
    name = "rows" if kind == "row_wise" else "columns"
    parts = pairwise(bounds)
    return tuple(Shard(worker=one, **{**whole, name: part}) for one, part in enumerate(parts))


def train_here(recipe, folder, overrides=()):
    """Trains in this process, with the other ranks of its group if there are any; resumes what is there."""
    settings = load_recipe(str(recipe), overrides)
    run = RunFolder(folder)
    resumes = Ranks.all().from_first(run.config.exists)
    trainer = Trainer(settings, run)
    if resumes:
        trainer.resume()
    return trainer.train()


def train(recipe, folder, world_size, *overrides):
    """A finished run on that many ranks; 1 is one process without a group."""
    if world_size == 1:
        train_here(recipe, folder, overrides)
    else:
        on_ranks(world_size, train_here, recipe, folder, overrides)
    return RunFolder(folder)


def outcome(run):
    """All that a run reports, without the clock."""
    lines = [{k: v for k, v in line.items() if k not in CLOCK_KEYS} for line in read_jsonl(run.metrics)]
    return lines, json.loads(run.evaluation("valid").read_text())


def losses(run):
    return [line["loss"] for line in read_jsonl(run.metrics) if line["kind"] == "train"]


def weights(run, data):
    """Every number of the last checkpoint that training changes, loaded in one process."""
    learner, _ = open_learner(run, Dataset(data))
    return {name: value for name, value in flat("", learner.state_dict()) if not name.endswith(".random")}


def flat(prefix, value):
    if isinstance(value, TableState):
        value = value.shards[0].parts
    if isinstance(value, dict):
        return [pair for key, one in value.items() for pair in flat(f"{prefix}.{key}", one)]
    return [(prefix, value if isinstance(value, torch.Tensor) else torch.tensor(value))]


def refusal(recipe, overrides, folder):
    """The sentence with which a rank refuses the plan of a run."""
    try:
        Trainer(load_recipe(str(recipe), overrides), folder)
    except PlanError as error:
        return str(error)
    return "no error"
