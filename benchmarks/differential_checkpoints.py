"""What do differential checkpoints cost in bytes, time and memory, and what does rounding cost in quality?

    python benchmarks/differential_checkpoints.py cost --workdir /tmp/ck --out benchmarks/results/differential-checkpoints.json
    python benchmarks/differential_checkpoints.py restore --workdir /tmp/ck --out ...
    python benchmarks/differential_checkpoints.py quality --workdir /tmp/ck --out ...

The recipe criteo-dlrm with vectors of 64 and row-wise AdaGrad on a generated Criteo-like stream: 3.4 million
rows in 26 tables. `cost` trains with whole checkpoints, with exact deltas and with rounded ones, 200 steps
apart, in which at least 15% of the rows are touched. Stall is the time that the thread that trains spends in
a save, and in copying rows before a step changes them. `restore` loads a whole checkpoint and chains of the
runs that `cost` left, in turn, and compares every number. `quality` trains through crashes and restores, and
holds NE on later rows against an undisturbed run of the same seed.

Each part is kept in the file by itself; runs of `quality` that are in it are not repeated.
"""

from __future__ import annotations

import argparse
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
from megalith.checkpoint.inspection import kept_steps
from megalith.checkpoint.manifest import DENSE_FILE
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.embeddings.changes.row_snapshot import RowSnapshot
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.train.loaders import open_dataset, train_loader
from megalith.train.recipe import Recipe, load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

ROWS, TEST_ROWS, SCALE = 1_500_000, 200_000, "0.1"
EVERY = 200
"""Steps between checkpoints of `cost`."""
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


def touched_rows(recipe: Recipe, last_step: int) -> tuple[list[int], int]:
    """Rows that each interval touches, found in the batches themselves, and rows in all."""
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
    return counts, sum(table.rows for table in tables)


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


def train_saving(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """One run: what each save took of the thread that trains, of time and of memory."""
    shutil.rmtree(folder, ignore_errors=True)
    trainer, watch = Trainer(recipe, folder), Stopwatch()
    undo = [
        watch.wrap(RowSnapshot, "before", "copying"),
        watch.wrap(TouchedRows, "touch", "marking"),
    ]
    saves: list[dict[str, Any]] = []
    starts: list[float] = []
    step, save = trainer.learner.step, trainer.store.save

    def timed_step(*arguments: Any) -> Any:
        starts.append(time.perf_counter())
        return step(*arguments)

    def timed_save(*arguments: Any, **options: Any) -> Any:
        resident = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        began = time.perf_counter()
        own: dict[str, Any] = {"step": arguments[0], "first": len(starts)}
        saves.append(own)

        def ended(_: object = None) -> None:
            own["writing_seconds"] = time.perf_counter() - began
            own["extra_bytes"] = status("VmHWM") - resident

        try:
            return save(*arguments, **options)
        finally:
            own["save_seconds"] = time.perf_counter() - began
            saving = trainer.store._saving
            if saving is None:
                ended()
            else:
                saving.add_done_callback(ended)

    trainer.learner.step, trainer.store.save = timed_step, timed_save
    copied = []
    for name in ("wait",):
        watch.wrap(trainer.store, name, "waiting")
    trainer.train()
    for each in undo:
        each()
    steps = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    # The last save is in the foreground, after the last step.
    background = [own for own in saves if own["step"] % EVERY == 0]
    first, last = background[0]["first"], background[-1]["first"]
    lasts = [own["first"] for own in background]
    quiet = [each for number, each in enumerate(steps) if not any(0 <= number + 1 - at < 40 for at in lasts)]
    changes = trainer.store.changes
    del copied
    return {
        "saves": background,
        "train_seconds": starts[-1] - starts[0],
        "step_seconds": statistics.median(quiet),
        "trainer_seconds": watch.seconds,
        "interval_seconds": (starts[last] - starts[first]) / max(1, len(background) - 1),
        "copied_bytes": 0 if changes is None else changes.peak_bytes,
    }


def cost(data: Path, workdir: Path) -> dict[str, Any]:
    """Bytes, stall and memory of whole checkpoints, and of exact and rounded deltas."""
    counts, rows = touched_rows(recipe_of(data), 4 * EVERY)
    found: dict[str, Any] = {"rows": rows, "touched": counts}
    for name, deltas in (("whole", 2), ("exact", 3), ("int8", 2), ("int4", 2)):
        bits = {"exact": 32, "int8": 8, "int4": 4}.get(name)
        settings = "{differential: no}" if bits is None else f"{{differential: yes, bits: {bits}}}"
        # One step more: rounded runs end with a whole checkpoint.
        steps = (1 + deltas) * EVERY + 1 if bits is not None else 2 * EVERY + 1
        recipe = recipe_of(
            data, f"train.steps={steps}", f"train.checkpoint_every={EVERY}", f"checkpoint={settings}"
        )
        folder = workdir / f"run-{name}"
        own = train_saving(recipe, folder)
        listed = {each.step: each for each in kept_steps(CheckpointStore(folder / "checkpoints"))}
        for save in own["saves"]:
            kept = listed[save["step"]]
            save |= {"kind": kept.kind, "bytes": kept.bytes}
            dense = folder / "checkpoints" / f"step-{save['step']:08d}" / DENSE_FILE
            save["dense_bytes"] = dense.stat().st_size
            if bits is not None and kept.kind == "delta":
                touched = counts[save["step"] // EVERY - 1]
                save["touched"] = touched
                save["over_touched"] = save["bytes"] / (touched * ROW_BYTES[bits] + save["dense_bytes"])
        spent = own["trainer_seconds"]
        own["stall_share"] = (
            sum(save["save_seconds"] for save in own["saves"]) + spent.get("copying", 0.0)
        ) / own["train_seconds"]
        own["marking_share"] = spent.get("marking", 0.0) / own["train_seconds"]
        found[name] = own
        show_cost(name, own)
    whole = found["whole"]["saves"][-1]["bytes"]
    for name in ("exact", "int8", "int4"):
        deltas_of = [save["bytes"] for save in found[name]["saves"] if save["kind"] == "delta"]
        found[name]["times_smaller"] = whole / max(deltas_of)
        print(f"{name}: {found[name]['times_smaller']:.1f} times fewer bytes than a whole one")
    return found


def show_cost(name: str, own: dict[str, Any]) -> None:
    """A line for each save, and one for the run."""
    for save in own["saves"]:
        over = f", {save['over_touched']:.4f} of touched rows" if "over_touched" in save else ""
        print(
            f"{name} step {save['step']}: {save['kind']} of {save['bytes'] / 1e6:.1f} MB{over}; in save "
            f"{1e3 * save['save_seconds']:.0f} ms, written in {save['writing_seconds']:.2f} s, extra memory "
            f"{save['extra_bytes'] / (1 << 20):.0f} MiB"
        )
    seconds = {label: round(1e3 * each) for label, each in own["trainer_seconds"].items()}
    print(
        f"{name}: {own['train_seconds']:.1f} s, a step {1e3 * own['step_seconds']:.1f} ms, stall "
        f"{own['stall_share']:.3%}, marking {own['marking_share']:.3%}; ms of the trainer {seconds}"
    )


def restore(data: Path, workdir: Path) -> dict[str, Any]:
    """Times of loads in turn, and whether an exact chain is what whole checkpoints hold."""
    learner_state = Trainer(recipe_of(data), workdir / "none").learner
    stores = {
        name: CheckpointStore(workdir / f"run-{name}" / "checkpoints")
        for name in ("whole", "exact", "int8", "int4")
    }
    loads = [("whole", 2 * EVERY)]
    loads += [("exact", step * EVERY) for step in (2, 3, 4)] + [("int8", 3 * EVERY), ("int4", 3 * EVERY)]
    seconds: dict[str, list[float]] = {f"{name} {step}": [] for name, step in loads}
    for _ in range(4):
        for name, step in loads:
            state = {"learner": learner_state.state_dict()}
            began = time.perf_counter()
            stores[name].load(step, state)
            seconds[f"{name} {step}"].append(time.perf_counter() - began)
    # The first round reads the files into memory and is left out.
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    full = medians[f"whole {2 * EVERY}"]
    contents = []
    for name in ("whole", "exact"):
        stores[name].load(2 * EVERY, {"learner": learner_state.state_dict()})
        contents.append(
            [
                part.clone()
                for table in learner_state.embeddings.table_states().values()
                for block in table.blocks(1 << 40)
                for part in block.parts.values()
            ]
        )
    same = all(torch.equal(a, b) for a, b in zip(*contents, strict=True))
    ratios = {name: each / full for name, each in medians.items()}
    for name, each in medians.items():
        print(f"load {name}: {each:.2f} s, {ratios[name]:.2f} of a whole one")
    print(f"exact chain {'is' if same else 'IS NOT'} the whole checkpoint, bit for bit")
    return {"seconds": seconds, "ratio_to_whole": ratios, "is_exact": same}


class _Crash(Exception):
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
                raise _Crash
            return step(*arguments)

        trainer.learner.step = crashing
        try:
            summary = trainer.train()
        except _Crash:
            continue
    shutil.rmtree(folder)
    return {
        "bits": bits,
        "restores": restores,
        "seed": seed,
        "from": loaded,
        "evaluation": summary["evaluation"],
    }


def quality(data: Path, workdir: Path, known: list[dict[str, Any]], keep: Callable[[Any], None]) -> None:
    """NE of undisturbed runs, and of those that were restored from rounded rows."""
    for seed in range(3):
        for bits, restores in ((32, 0), (4, 1), (8, 10)):
            if (bits, restores, seed) not in {(run["bits"], run["restores"], run["seed"]) for run in known}:
                known.append(train_through(data, workdir / "quality", bits, restores, seed))
                keep(known)
            own = next(
                run for run in known if (run["bits"], run["restores"], run["seed"]) == (bits, restores, seed)
            )
            base = next(run for run in known if run["restores"] == 0 and run["seed"] == seed)
            change = own["evaluation"]["ne"] / base["evaluation"]["ne"] - 1
            print(
                f"seed {seed}, {bits} bits, {restores} restores: NE {own['evaluation']['ne']:.6f} ({change:+.4%})"
            )


def main() -> None:
    """Runs a part and keeps it beside the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("cost", "restore", "quality"))
    parser.add_argument("--workdir", type=Path, required=True, help="for data and runs, kept and reused")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = data_in(options.workdir)
    parts: dict[str, Any] = {}
    if options.out.exists():
        parts = json.loads(options.out.read_text(encoding="utf-8"))["results"]

    def keep(content: Any) -> None:
        parts[options.part] = content
        settings = {
            **{"recipe": "criteo-dlrm", "dim": 64, "batch_size": 2048, "rows": ROWS, "scale": SCALE},
            **{"test_rows": TEST_ROWS, "every": EVERY, "goals": GOALS},
        }
        save_result(options.out, result("differential-checkpoints", settings, parts, data))

    if options.part == "quality":
        quality(data, options.workdir, parts.get("quality", []), keep)
    else:
        keep((cost if options.part == "cost" else restore)(data, options.workdir))


if __name__ == "__main__":
    main()
