"""Runs to score with: raw rows of each kind, prepared, and a small model trained on them."""

import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megalith.comm.ranks import Ranks
from megalith.data.prepare import PrepareOptions, prepare
from megalith.train.evaluation.score_run import EvalRequest, score_run
from megalith.train.recipe import load_recipe
from megalith.train.scoring.predict import PredictRequest, predict_run
from megalith.train.trainer import Trainer

ROWS, TEST_ROWS = 1500, 700


class Place(NamedTuple):
    """A folder with raw files, `data`, `run`, and the scores of split test as `eval` gives them."""

    folder: object
    test: object
    scores: np.ndarray


def rows(count, seed, lists=False):
    """Rows with gaps, integers, texts shorter and longer than a key, values that training has not seen."""
    draw = np.random.default_rng(seed)
    texts = [
        f"page number {number}" if number % 3 else f"p{number}" for number in draw.integers(0, 60, count)
    ]
    gaps = draw.random((3, count)) < 0.1
    columns = {
        "label": pa.array(draw.integers(0, 2, count), pa.float32()),
        "x": pa.array(draw.normal(size=count) * 50, mask=gaps[0]),
        "clicks": pa.array(draw.integers(0, 1000, count), mask=gaps[1]),
        "user": pa.array(draw.integers(-40, 40 + seed, count), mask=gaps[2]),
        "page": pa.array(texts),
        "request": pa.array([f"r{number}" for number in range(count)]),
    }
    if lists:
        columns["tags"] = pa.array(
            [[f"t{n}" for n in draw.integers(0, 9, draw.integers(0, 4))] for _ in texts]
        )
    return pa.table(columns)


def prepared(folder, files, test, **options):
    settings = {
        "source": "parquet",
        "files": files,
        "test_files": test,
        "out": folder / "data",
        "min_count": 3,
    }
    return prepare(PrepareOptions.model_validate({"threads": 1, **settings, **options}))


def trained(folder, model="kind: dlrm, dim: 4, bottom: {layers: [8]}, top: {layers: [8]}", **sections):
    """Trains into `run`; `sections` are those of the recipe that differ."""
    content = "".join(f"{name}: {json.dumps(section)}\n" for name, section in sections.items())
    (folder / "recipe.yaml").write_text(
        f"""
name: scored
data: {{path: {folder / "data"}, batch_size: 100, eval_batch_size: 300, threads: 1}}
model: {{{model}}}
train: {{epochs: 1, log_every: 5, checkpoint_every: 10, tensorboard: no}}
{content}"""
    )
    Trainer(load_recipe(folder / "recipe.yaml"), folder / "run").train()


def eval_scores(folder, out, **request):
    """What `megalith eval --predictions` writes for split test."""
    score_run(Ranks(), EvalRequest(folder / "run", "test", predictions=out, **request))
    return pq.read_table(out)


def predicted(run, *inputs, out, **options):
    """The scores that predict writes to a Parquet file."""
    predict_run(PredictRequest(run, inputs, out, **options))
    return pq.read_table(out)


def make_place(folder, lists=False, stores=None, **options):
    """Raw Parquet files, prepared and trained on."""
    pq.write_table(rows(ROWS, 1, lists), folder / "train.parquet")
    pq.write_table(rows(TEST_ROWS, 2, lists), folder / "test.parquet", row_group_size=111)
    settings = {"numbers": ("clicks",), "dropped": ("request",), **options}
    prepared(folder, (folder / "train.parquet",), (folder / "test.parquet",), **settings)
    trained(folder, **({} if stores is None else {"embeddings": {"stores": stores}}))
    scores = eval_scores(folder, folder / "eval.parquet")["score"].to_numpy()
    return Place(folder, folder / "test.parquet", scores)
