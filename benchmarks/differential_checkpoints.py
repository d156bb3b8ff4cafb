"""What do differential checkpoints cost in bytes, time and memory, and what does rounding cost in quality?

    cd benchmarks
    python differential_checkpoints.py cost --workdir /tmp/ck --out results/differential-checkpoints.json
    python differential_checkpoints.py quality --workdir /tmp/ck --out results/differential-checkpoints.json

The recipe criteo-dlrm with vectors of 64 and row-wise AdaGrad on a generated Criteo-like stream: 3.4 million
rows in 26 tables. `cost` trains 600 steps and saves every 200, in which at least 15% of the rows are touched:
exact deltas in the background, and in a pause that is not counted the same rows in 8 and 4 bits. Stall is the
time that the thread that trains spends in a save, and in copying rows before a step changes them. Then whole
checkpoints and chains are loaded in turn. `quality` trains through crashes and restores, and holds NE on
later rows against an undisturbed run of the same seed.

Each part is kept in the file by itself; runs of `quality` that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megalith.bench.runner import result, save_result
from megalith.checkpoint.differential.changes import CONSUMER
from megalith.checkpoint.differential.settings import CheckpointConfig
from megalith.checkpoint.inspection import kept_steps
from megalith.checkpoint.manifest import DENSE_FILE
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.embeddings.changes.row_snapshot import RowSnapshot
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.train.learner.learner import Learner
from megalith.train.loaders import open_dataset, train_loader
from megalith.train.recipe import Recipe, load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

ROWS, TEST_ROWS, SCALE = 1_500_000, 200_000, "0.1"
EVERY, STEPS = 200, 600
"""Steps between checkpoints of `cost`, and of its run."""
BITS = {"exact": 32, "int8": 8, "int4": 4}
ROW_BYTES = {32: 64 * 4 + 4 + 8, 8: 64 + 8 + 4 + 8, 4: 32 + 8 + 4 + 8}
"""Of a touched row: weight or codes with their scale, state and id."""
GOALS = {
    "bytes_over_touched": 1.05,
    "smaller_8": 6.0,
    "smaller_4": 12.0,
    "stall": 0.005,
    "extra_memory": 256 << 20,
    "restore": 1.7,
    "ne": 1e-4,
}


def data_in(workdir: Path) -> Path:
    """The generated stream, kept and reused."""
    data = workdir / "criteo"
    if not (data / "schema.json").exists():
        shutil.rmtree(data, ignore_errors=True)
        command = [sys.executable, "-m", "megalith", "data", "synth", "criteo", "--out", str(data)]
        rows = ["--rows", str(ROWS), "--valid-rows", "10", "--test-rows", str(TEST_ROWS), "--scale", SCALE]
        subprocess.run([*command, *rows], check=True)
    return data


def recipe_of(data: Path, *overrides: str) -> Recipe:
    """The recipe that all parts train."""
    return load_recipe(
        "criteo-dlrm",
        [
            *(f"data.path={data}", "data.eval=test", "model.dim=64", "train.eval_every=100000"),
            *("train.tensorboard=no", "train.trace=no", "train.keep_checkpoints=100", *overrides),
        ],
    )


def touched_rows(recipe: Recipe, last_step: int) -> list[int]:
    """Rows that each interval touches, found in the batches themselves."""
    dataset = open_dataset(recipe.data)
    tables = recipe.model.tables(dataset.schema.categorical)
    loader = train_loader(recipe.data, dataset, Ranks(), recipe.train.seed)
    counts, seen = [], [torch.zeros(table.rows, dtype=torch.bool) for table in tables]
    for step, batch in enumerate(loader.stream(), 1):
        edges = batch.offsets[:: batch.batch_size].tolist()
        for feature, own in enumerate(seen):
            own[batch.values[edges[feature] : edges[feature + 1]].long()] = True
        if step % EVERY == 0:
            counts.append(sum(int(own.sum()) for own in seen))
            seen = [torch.zeros_like(own) for own in seen]
        if step == last_step:
            break
    loader.close()
    return counts


class Stopwatch:
    """Seconds that the thread that trains spends in some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()

    def wrap(self, owner: Any, name: str, label: str) -> Callable[[], None]:
        """Times a function of a class; returns what puts it back."""
        original = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                if threading.get_ident() == self._thread:
                    spent = time.perf_counter() - began
                    self.seconds[label] = self.seconds.get(label, 0.0) + spent

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, original)


def status(key: str) -> int:
    """Bytes of this process, as the system counts them."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def touched_marks(learner: Learner) -> list[tuple[TouchedRows, torch.Tensor]]:
    """What the next delta will have, which stays marked."""
    taken = []
    for state in learner.embeddings.table_states().values():
        for shard in state.shards:
            if shard.touched is not None and shard.touched.is_watched:
                positions = shard.touched.take(CONSUMER)
                shard.touched.give_back(CONSUMER, positions)
                taken.append((shard.touched, positions))
    return taken


class MeasuredSaves:
    """Stands before the saves of a trainer: writes the same rows rounded as well, and measures."""

    def __init__(self, trainer: Trainer, sides: dict[str, CheckpointStore]) -> None:
        self.saves: list[dict[str, Any]] = []
        self.paused, self.starts = 0.0, list[float]()
        self._trainer, self._sides = trainer, sides
        self._save, self._step = trainer.store.save, trainer.learner.step
        trainer.store.save, trainer.learner.step = self.save, self.step

    def step(self, *arguments: Any) -> Any:
        """A step of the learner."""
        self.starts.append(time.perf_counter() - self.paused)
        return self._step(*arguments)

    def save(self, step: int, state: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        """A save of the trainer."""
        if self.saves and self.saves[-1]["step"] == step:
            return None
        began = time.perf_counter()
        marks = touched_marks(self._trainer.learner)
        for store in self._sides.values():
            store.save(step, state, {})
            for touched, positions in marks:
                touched.give_back(CONSUMER, positions)
        self.paused += time.perf_counter() - began
        own: dict[str, Any] = {"step": step, "marked": sum(len(positions) for _, positions in marks)}
        self.saves.append(own)
        resident = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        began = time.perf_counter()

        def ended(_: object = None) -> None:
            own["writing_seconds"] = time.perf_counter() - began
            own["extra_bytes"] = status("VmHWM") - resident

        result = self._save(step, state, *arguments, **options)
        own["save_seconds"] = time.perf_counter() - began
        saving = self._trainer.store._saving
        if saving is None:
            ended()
        else:
            saving.add_done_callback(ended)
        return result


def cost(data: Path, workdir: Path) -> dict[str, Any]:
    """Bytes of exact and rounded deltas, stall and memory of the exact ones, times of loads."""
    folder = workdir / "cost"
    shutil.rmtree(folder, ignore_errors=True)
    recipe = recipe_of(
        data,
        *(f"train.steps={STEPS}", f"train.checkpoint_every={EVERY}", "data.eval=valid"),
        "checkpoint={differential: yes}",
    )
    sides = {
        name: CheckpointStore(folder / name, 100, config=CheckpointConfig(differential=True, bits=bits))
        for name, bits in BITS.items()
        if bits != 32
    }
    trainer, watch = Trainer(recipe, folder / "run"), Stopwatch()
    measured = MeasuredSaves(trainer, sides)
    undo = [watch.wrap(RowSnapshot, "before", "copying"), watch.wrap(TouchedRows, "touch", "marking")]
    watch.wrap(trainer.store, "wait", "waiting")
    trainer.train()
    for each in undo:
        each()
    stores = {"exact": trainer.store, **sides}
    rows = sum(table.rows for table in trainer.learner.embeddings.tables)
    found = {"rows": rows, **times(measured, watch)}
    if trainer.store.changes is not None:
        found["copied_bytes"] = trainer.store.changes.peak_bytes
        print(f"at most {found['copied_bytes'] / (1 << 20):.1f} MiB of rows copied by the trainer")
    found |= {"sizes": sizes(stores, touched_rows(recipe, STEPS), rows)}
    return found | {"restore": restore(trainer, stores, folder / "whole")}


def times(measured: MeasuredSaves, watch: Stopwatch) -> dict[str, Any]:
    """What saves took of the thread that trains."""
    starts, saves = measured.starts, measured.saves
    seconds = starts[-1] - starts[0]
    steps = sorted(b - a for a, b in itertools.pairwise(starts))
    stall = sum(save["save_seconds"] for save in saves) + watch.seconds.get("copying", 0.0)
    for save in saves:
        print(
            f"step {save['step']}: in save {1e3 * save['save_seconds']:.0f} ms, written in "
            f"{save['writing_seconds']:.2f} s, extra memory {save['extra_bytes'] / (1 << 20):.0f} MiB"
        )
    spent = {label: f"{1e3 * each:.0f} ms" for label, each in watch.seconds.items()}
    print(f"{seconds:.1f} s, a step {1e3 * steps[len(steps) // 2]:.1f} ms; of the trainer {spent}")
    print(f"stall {stall / seconds:.3%} of the time, marking {watch.seconds['marking'] / seconds:.3%}")
    return {
        "saves": saves,
        "train_seconds": seconds,
        "step_seconds": statistics.median(steps),
        "trainer_seconds": watch.seconds,
        "stall_share": stall / seconds,
        "marking_share": watch.seconds["marking"] / seconds,
    }


def sizes(stores: dict[str, CheckpointStore], touched: list[int], rows: int) -> dict[str, Any]:
    """Bytes of each delta, beside those of touched rows and of a whole checkpoint."""
    found: dict[str, Any] = {"touched": touched}
    for name, store in stores.items():
        whole = 0
        for each in kept_steps(store):
            if each.kind == "baseline":
                whole = each.bytes
                continue
            own_touched = touched[each.step // EVERY - 1]
            dense = (store.path(each.step) / DENSE_FILE).stat().st_size
            over = each.bytes / (own_touched * ROW_BYTES[BITS[name]] + dense)
            found[f"{name} {each.step}"] = {
                "bytes": each.bytes,
                "dense_bytes": dense,
                "touched_share": own_touched / rows,
                "over_touched": over,
                "times_smaller": whole / each.bytes,
            }
            print(
                f"{name} {each.step}: {each.bytes / 1e6:.1f} MB, {own_touched / rows:.1%} of rows touched, "
                f"{over:.4f} of their bytes, {whole / each.bytes:.1f} times fewer than a whole one"
            )
    return found


def restore(trainer: Trainer, stores: dict[str, CheckpointStore], folder: Path) -> dict[str, Any]:
    """Times of loads in turn, and whether an exact chain is what is in memory."""
    state = {"learner": trainer.learner.state_dict()}
    stores = {"whole": CheckpointStore(folder), **stores}
    stores["whole"].save(STEPS, state, {})
    expected = contents(trainer.learner)
    loads = [("whole", STEPS), *(("exact", step) for step in range(EVERY, STEPS + 1, EVERY))]
    loads += [(name, STEPS) for name in ("int8", "int4")]
    seconds: dict[str, list[float]] = {f"{name} {step}": [] for name, step in loads}
    is_exact = False
    for _ in range(4):
        for name, step in loads:
            state = {"learner": trainer.learner.state_dict()}
            began = time.perf_counter()
            stores[name].load(step, state)
            seconds[f"{name} {step}"].append(time.perf_counter() - began)
            if (name, step) == ("exact", STEPS):
                is_exact = all(map(torch.equal, contents(trainer.learner), expected))
    # The first round reads the files into memory and is left out.
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    ratios = {name: each / medians[f"whole {STEPS}"] for name, each in medians.items()}
    for name, each in medians.items():
        print(f"load {name}: {each:.2f} s, {ratios[name]:.2f} of a whole one")
    print(f"the exact chain {'is' if is_exact else 'IS NOT'} what is in memory, bit for bit")
    return {"seconds": seconds, "ratio_to_whole": ratios, "is_exact": is_exact}


def contents(learner: Learner) -> list[torch.Tensor]:
    """Every weight and every number of optimizer state, copied."""
    return [
        part.clone()
        for table in learner.embeddings.table_states().values()
        for block in table.blocks(1 << 40)
        for part in block.parts.values()
    ]


class _CrashError(Exception):
    """Ends a run between two steps, as a kill would."""


def train_through(data: Path, folder: Path, bits: int, restores: int, seed: int) -> dict[str, Any]:
    """NE of a run that crashes and goes on from a rounded delta so often, at even distances."""
    steps = ROWS // 2048
    every = steps // (restores + 2)
    recipe = recipe_of(
        data,
        *(f"train.seed={seed}", f"train.checkpoint_every={every}", "train.keep_checkpoints=2"),
        f"checkpoint={{differential: {'yes' if restores else 'no'}, bits: {bits}}}",
    )
    shutil.rmtree(folder, ignore_errors=True)
    loaded = []
    # The first checkpoint is a baseline; each restore is from a delta.
    crashes = [(number + 2) * every + 2 for number in range(restores)]
    for crash in [*crashes, None]:
        trainer = Trainer(recipe, RunFolder(folder), resumes=folder.exists())
        if folder.exists():
            loaded.append(trainer.resume())
            kept = {each.step: each for each in kept_steps(trainer.store)}[loaded[-1]]
            if kept.kind != "delta" or kept.bits != bits:
                raise ValueError(f"step {loaded[-1]} is a {kept.kind} of {kept.bits} bits")
        step = trainer.learner.step

        def crashing(*arguments: Any, step: Any = step, trainer: Trainer = trainer, at: Any = crash) -> Any:
            if trainer.step == at:
                trainer.store.wait()
                raise _CrashError
            return step(*arguments)

        trainer.learner.step = crashing
        try:
            summary = trainer.train()
        except _CrashError:
            continue
    shutil.rmtree(folder)
    return {
        "bits": bits,
        "restores": restores,
        "seed": seed,
        "from": loaded,
        "evaluation": summary["evaluation"],
    }


def quality(data: Path, workdir: Path, known: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """NE of undisturbed runs, and of those that were restored from rounded rows."""
    wanted = [(bits, restores, seed) for seed in range(3) for bits, restores in ((32, 0), (8, 10), (4, 1))]
    found = {(run["bits"], run["restores"], run["seed"]): run for run in known}
    for case in [each for each in wanted if each not in found][:most]:
        found[case] = train_through(data, workdir / "quality", *case)
    for bits, restores, seed in (case for case in wanted if case in found):
        own, base = found[bits, restores, seed], found.get((32, 0, seed))
        ne = own["evaluation"]["ne"]
        change = "" if base is None else f" ({ne / base['evaluation']['ne'] - 1:+.4%})"
        print(f"seed {seed}, {bits} bits, {restores} restores: NE {ne:.6f}{change}")
    return list(found.values())


def main() -> None:
    """Runs a part and keeps it beside the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("cost", "quality"))
    parser.add_argument("--workdir", type=Path, required=True, help="for data and runs, kept and reused")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=9, help="of quality: at most so many that are not there")
    options = parser.parse_args()
    data = data_in(options.workdir)
    parts: dict[str, Any] = {}
    if options.out.exists():
        parts = json.loads(options.out.read_text(encoding="utf-8"))["results"]

    if options.part == "quality":
        parts["quality"] = quality(data, options.workdir, parts.get("quality", []), options.runs)
    else:
        parts["cost"] = cost(data, options.workdir)
    settings = {
        "recipe": "criteo-dlrm",
        "dim": 64,
        "batch_size": 2048,
        "rows": ROWS,
        "test_rows": TEST_ROWS,
        "scale": SCALE,
        "every": EVERY,
        "goals": GOALS,
    }
    save_result(options.out, result("differential-checkpoints", settings, parts, data))


if __name__ == "__main__":
    main()
