r"""What do rare ids of a generated stream carry? A dense model against two that give rare ids no row.

    python benchmarks/tail_stream.py --workdir /tmp/tails --out benchmarks/results/tail-stream.json
    python benchmarks/tail_stream.py --workdir /tmp/tails --out benchmarks/results/tail-stream-10m.json \
        --rows 10000000 --scale 1 --seeds 0 --streams tail --no-training

Generates Criteo-like clicks with and without `--tail` (a tenth of the real ids, 2,000,000 rows) and trains
the recipe criteo-dlrm for one epoch in three ways: `dense` gives every id a row; `unknown` maps ids seen
fewer than 10 times in training to one row; `hashed` takes ids modulo a 16th of the rows in tables above
10,000 rows. Log loss is that of later rows. Every seed has a stream and start values of its own.

Beside them stands what an ideal learner would gain: one that knows the truth of everything but the effects
of rare ids, and estimates those from the training labels with the true prior. Results are kept as they come;
runs that are in the file already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from megalith.bench.runner import result, save_result
from megalith.data.dataset import FIRST_ID, UNKNOWN_ID, Dataset, DatasetSchema, write_schema
from megalith.data.synth.generate import ROW_GROUP_ROWS, TRUE_PROBABILITY, generate
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.stream import SynthStream
from megalith.data.synth.tail import TAIL_DEVIATION
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

STREAMS = ("tail", "default")
WAYS = ("dense", "unknown", "hashed")
RARE = 10
"""Ids seen fewer times than this in training are rare."""
HASHED = 16
WHOLE_ROWS = 10_000
"""Tables up to this size are kept whole by hashing."""
NEWTON_STEPS = 8

IdMaps = dict[str, NDArray[np.int32]]
Floats = NDArray[np.float64]


def count_ids(dataset: Dataset) -> dict[str, NDArray[np.int64]]:
    """How often each id of each feature occurs in training."""
    counts: dict[str, NDArray[np.int64]] = {}
    for feature in dataset.schema.categorical:
        counts[feature.name] = np.zeros(feature.num_ids, dtype=np.int64)
        for path in dataset.files("train"):
            ids = pq.read_table(path, columns=[feature.name])[feature.name].to_numpy()
            counts[feature.name] += np.bincount(ids, minlength=feature.num_ids)
    return counts


def unknown_ids(counts: Mapping[str, NDArray[np.int64]]) -> IdMaps:
    """Maps that give all rare ids one row."""
    maps = {}
    for name, count in counts.items():
        ids = np.arange(len(count), dtype=np.int32)
        maps[name] = np.where((count < RARE) & (ids >= FIRST_ID), np.int32(UNKNOWN_ID), ids)
    return maps


def hashed_ids(schema: DatasetSchema) -> tuple[IdMaps, DatasetSchema]:
    """Maps that let the ids of a large table share a 16th of its rows."""
    maps: IdMaps = {}
    features = []
    for feature in schema.categorical:
        if feature.num_ids > WHOLE_ROWS:
            rows = (feature.num_ids - FIRST_ID) // HASHED
            ids = np.arange(feature.num_ids, dtype=np.int32)
            maps[feature.name] = np.where(ids >= FIRST_ID, (ids - FIRST_ID) % rows + FIRST_ID, ids)
            feature = feature.model_copy(update={"num_ids": rows + FIRST_ID})
        features.append(feature)
    return maps, schema.model_copy(update={"categorical": tuple(features)})


def write_mapped(dataset: Dataset, maps: IdMaps, schema: DatasetSchema, folder: Path) -> None:
    """The same rows with other ids."""
    for split in schema.splits:
        (folder / split).mkdir(parents=True)
        for path in dataset.files(split):
            table = pq.read_table(path)
            for position, name in enumerate(table.column_names):
                if name in maps:
                    column = pa.array(maps[name][table[name].to_numpy()])
                    table = table.set_column(position, name, column)
            target = folder / split / path.name
            pq.write_table(
                table, target, row_group_size=ROW_GROUP_ROWS, compression="lz4", use_dictionary=False
            )
    write_schema(folder, schema)


def train(data: Path, dim: int, lr: float, seed: int) -> dict[str, Any]:
    """One epoch; returns the evaluation on later rows."""
    with tempfile.TemporaryDirectory(dir=data.parent) as folder:
        recipe = load_recipe(
            "criteo-dlrm",
            [
                *(f"data.path={data}", "data.eval=test", f"train.seed={seed}", f"model.dim={dim}"),
                *(f"embeddings.optimizer.lr={lr}", "train.tensorboard=false", "train.trace=false"),
                *("train.eval_every=1000000", "train.checkpoint_every=1000000"),
            ],
        )
        evaluation: dict[str, Any] = Trainer(recipe, Path(folder) / "run").train()["evaluation"]
    return evaluation


@dataclass(frozen=True)
class Column:
    """A large feature, for the ideal learner."""

    train_ids: NDArray[np.int32]
    test_ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    effects: Floats
    """The true effect of each id; 0 for ids that are not rare in the generator's sense."""
    has_effect: NDArray[np.bool_]

    def estimate(self, labels: Floats, logits: Floats) -> tuple[Floats, Floats]:
        """The likeliest effect of each id and its variance, all else in the logits known; by Newton steps."""
        ids, size = self.train_ids, len(self.effects)
        others = logits - self.effects[ids]
        effects, precision = np.zeros(size), np.full(size, TAIL_DEVIATION**-2)
        for _ in range(NEWTON_STEPS):
            chances = sigmoid(others + effects[ids])
            slope = np.bincount(ids, labels - chances, size) - effects * TAIL_DEVIATION**-2
            precision = np.bincount(ids, chances * (1 - chances), size) + TAIL_DEVIATION**-2
            effects += slope / precision
        return np.where(self.has_effect, effects, 0.0), np.where(self.has_effect, 1 / precision, 0.0)


def ideal_learner(dataset: Dataset, options: SynthOptions, counts: Mapping[str, Any]) -> dict[str, float]:
    """Log loss on later rows of one who knows all but the effects of rare ids, and estimates those."""
    stream = SynthStream(options)
    columns = []
    for position, tail in stream.tail.items():
        field = stream.fields[position]
        name = field.shape.name
        ids = np.arange(len(counts[name]), dtype=np.int32)
        has_effect = (ids >= field.rare_ids.start) & (ids < field.rare_ids.stop)
        effects = np.where(has_effect, tail.of_ids(ids), 0.0).astype(np.float64)
        train_ids, test_ids = (
            pq.read_table(dataset.files(split), columns=[name])[name].to_numpy()
            for split in ("train", "test")
        )
        columns.append(Column(train_ids, test_ids, counts[name], effects, has_effect))
    labels, logits = truth_of(dataset, "train")
    test_labels, test_logits = truth_of(dataset, "test")
    known = test_logits - sum(column.effects[column.test_ids] for column in columns)
    learned, kept, nothing = ([known.copy(), np.zeros(len(known))] for _ in range(3))
    for column in columns:
        effects, variances = column.estimate(labels, logits)
        prior = np.where(column.has_effect, TAIL_DEVIATION**2, 0.0)
        often = column.counts >= RARE
        for case, mean, variance in (
            (learned, effects, variances),
            (kept, np.where(often, effects, 0.0), np.where(often, variances, prior)),
            (nothing, np.zeros(len(prior)), prior),
        ):
            case[0] += mean[column.test_ids]
            case[1] += variance[column.test_ids]
    losses = [expected_log_loss(test_labels, *case) for case in (learned, kept, nothing)]
    seen_rarely = [(column.counts[column.test_ids] < RARE).mean() for column in columns]
    return {
        "truth": log_loss(test_labels, sigmoid(test_logits)),
        "learned": losses[0],
        "learned_without_ids_seen_rarely": losses[1],
        "nothing_learned_of_rare_ids": losses[2],
        "share_of_gain_of_ids_seen_rarely": (losses[1] - losses[0]) / (losses[2] - losses[0]),
        "share_of_accesses_of_ids_seen_rarely": float(np.mean(seen_rarely)),
    }


def truth_of(dataset: Dataset, split: str) -> tuple[Floats, Floats]:
    """Labels and true logits of a split."""
    table = pq.read_table(dataset.files(split), columns=["label", TRUE_PROBABILITY])
    chances = np.clip(table[TRUE_PROBABILITY].to_numpy().astype(np.float64), 1e-7, 1 - 1e-7)
    return table["label"].to_numpy().astype(np.float64), np.log(chances / (1 - chances))


def sigmoid(logits: Floats) -> Floats:
    """The probability of a logit."""
    return 1.0 / (1.0 + np.exp(-logits))


def expected_log_loss(labels: Floats, mean: Floats, variance: Floats) -> float:
    """Log loss of the click probability averaged over a normal logit (MacKay's approximation)."""
    return log_loss(labels, sigmoid(mean / np.sqrt(1.0 + np.pi / 8.0 * variance)))


def log_loss(labels: Floats, chances: Floats) -> float:
    """Mean of -log p(label)."""
    return float(-np.mean(np.log(np.where(labels > 0, chances, 1.0 - chances))))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What all runs of one file share."""
    return {
        "recipe": "criteo-dlrm",
        "rows": options.rows,
        "test_rows": options.rows // 10,
        "scale": options.scale,
        "dim": options.dim,
        "lr": options.lr,
        "tail_deviation": TAIL_DEVIATION,
    }


def run_stream(options: argparse.Namespace, stream: str, seed: int, known: list[dict[str, Any]]) -> None:
    """Generates one stream and trains what is missing of it, adding to `known` and to the file."""
    done = {run["way"] for run in known if (run["stream"], run["seed"]) == (stream, seed)}
    missing = [way for way in (("ideal",) if options.no_training else WAYS) if way not in done]
    if not missing:
        return
    folder = options.workdir / f"{stream}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    synth = SynthOptions(
        "criteo",
        train_rows=options.rows,
        test_rows=options.rows // 10,
        seed=seed,
        scale=options.scale,
        tail=stream == "tail",
    )
    generate(synth, folder / "dense")
    dataset = Dataset(folder / "dense")
    counts = count_ids(dataset)
    for way in missing:
        run: dict[str, Any] = {"stream": stream, "seed": seed, "way": way}
        if stream == "tail" and way in ("dense", "ideal"):
            run["ideal"] = ideal_learner(dataset, synth, counts)
        if way == "unknown":
            write_mapped(dataset, unknown_ids(counts), dataset.schema, folder / way)
        elif way == "hashed":
            write_mapped(dataset, *hashed_ids(dataset.schema), folder / way)
        if way in WAYS:
            run["evaluation"] = train(folder / way, options.dim, options.lr, seed)
            loss = run["evaluation"]["log_loss"]
            print(f"{stream:8s} seed {seed}  {way:8s} log loss {loss:.5f}", flush=True)
        known.append(run)
        results = {"costs": summarise(known), "runs": known}
        save_result(options.out, result("tail-stream", settings_of(options), results, options.workdir))
    shutil.rmtree(folder)


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What each way costs beside `dense`, in percent of log loss, over seeds."""
    losses = {
        (run["stream"], run["seed"], run["way"]): run["evaluation"]["log_loss"]
        for run in runs
        if run["way"] in WAYS
    }
    costs: dict[str, dict[str, Any]] = {}
    for (stream, seed, way), loss in losses.items():
        if way != "dense" and (stream, seed, "dense") in losses:
            percent = 100 * (loss / losses[stream, seed, "dense"] - 1)
            costs.setdefault(f"{stream} {way}", {"percent": []})["percent"].append(percent)
    for cost in costs.values():
        cost["mean"] = statistics.mean(cost["percent"])
        cost["spread"] = max(cost["percent"]) - min(cost["percent"])
    return costs


def main() -> None:
    """Trains every way on every stream and prints what each costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="for the generated data; emptied again")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows to train on")
    parser.add_argument("--scale", type=float, default=0.1, help="share of the real number of ids")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.12, help="learning rate of the tables")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--no-training", action="store_true", help="only what an ideal learner would gain")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known: list[dict[str, Any]] = []
    if options.out.exists():
        content = json.loads(options.out.read_text(encoding="utf-8"))
        if content["settings"] != settings_of(options):
            sys.exit(f"{options.out} has runs of other settings; give --out another file.")
        known = content["results"]["runs"]
    for seed in options.seeds:
        for stream in options.streams:
            run_stream(options, stream, seed, known)
    for name, cost in summarise(known).items():
        each = ", ".join(f"{percent:+.3f}" for percent in cost["percent"])
        print(f"{name:16s} {cost['mean']:+.3f}% of log loss (seeds: {each}; spread {cost['spread']:.3f})")
    for run in known:
        if "ideal" in run:
            ideal = run["ideal"]
            print(
                f"seed {run['seed']}: ids seen fewer than {RARE} times are "
                f"{ideal['share_of_accesses_of_ids_seen_rarely']:.1%} of the accesses of large features and "
                f"carry {ideal['share_of_gain_of_ids_seen_rarely']:.1%} of what an ideal learner gains from "
                f"rare ids (log loss {ideal['nothing_learned_of_rare_ids']:.5f} -> {ideal['learned']:.5f}; "
                f"the truth has {ideal['truth']:.5f})"
            )


if __name__ == "__main__":
    main()
