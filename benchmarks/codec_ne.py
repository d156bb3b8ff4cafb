"""What do codecs of the exchange cost in quality, and what do they save on the wire?

    python benchmarks/codec_ne.py --workdir /tmp/codecs --out benchmarks/results/codec-ne.json

Trains the recipe criteo-dlrm on a generated Criteo-like stream (1,000,000 rows, one pass) on two ranks, once
for every pair of codecs, and holds normalized entropy on 200,000 later rows against that of FP32. All runs
have the same plan, seed and order of rows: what differs is the codec. Beside them stands FP32 in one process,
which only adds gradients up in another order: how much NE moves for no reason at all. Results
are kept as they come; runs that are in the file already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import multiprocessing

from megalith.bench.runner import result, save_result
from megalith.core.schema import TableSpec
from megalith.sharding.plan import ExchangeConfig, Placement, Shard, ShardingPlan

RANKS = 2
ROWS, TEST_ROWS = 1_000_000, 200_000
CUT_ROWS = 50_000
"""Larger tables are cut by rows, so that partial sums travel too."""
PAIRS = ("fp32/fp32", "fp16/fp16", "bf16/bf16", "fp16/bf16", "int8/fp16", "int8/int8")
"""Forward and backward."""
ALONE = "one process"
LIMIT = 2e-4


def whole_and_cut(tables: list[TableSpec], exchange: ExchangeConfig) -> ShardingPlan:
    """Whole tables in turn, large ones cut by rows: every table's vectors travel for half of the samples."""
    placements = []
    for number, table in enumerate(tables):
        columns = (0, table.dim)
        if table.rows > CUT_ROWS:
            edges = [table.rows * part // RANKS for part in range(RANKS + 1)]
            shards = [
                Shard(worker=worker, rows=(edges[worker], edges[worker + 1]), columns=columns)
                for worker in range(RANKS)
            ]
            placements.append(Placement(table=table.name, kind="row_wise", shards=tuple(shards)))
        else:
            shard = Shard(worker=number % RANKS, rows=(0, table.rows), columns=columns)
            placements.append(Placement(table=table.name, kind="table_wise", shards=(shard,)))
    return ShardingPlan(
        world_size=RANKS, workers_per_node=RANKS, placements=tuple(placements), exchange=exchange
    )


def _rank(pipe: Connection, rank: int, meet: str, data: str, folder: str, pair: str, seed: int) -> None:
    import torch
    import torch.distributed as dist

    from megalith.data.dataset import Dataset
    from megalith.sharding.runtime.collection import ShardedEmbeddingCollection
    from megalith.train.recipe import load_recipe
    from megalith.train.run.folder import RunFolder
    from megalith.train.trainer import Trainer

    torch.set_num_threads(1)
    recipe = load_recipe(
        "criteo-dlrm",
        [
            *(f"data.path={data}", "data.eval=test", f"train.seed={seed}", "train.tensorboard=false"),
            *("train.eval_every=100000", "train.checkpoint_every=100000", "train.trace=false"),
        ],
    )
    if pair == ALONE:
        (Path(folder) / "run").mkdir()
        pipe.send((Trainer(recipe, RunFolder(Path(folder) / "run")).train(), {}))
        return
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=RANKS)
    tables = recipe.model.tables(Dataset(Path(data)).schema.categorical)
    forward, backward = pair.split("/")
    exchange = ExchangeConfig.model_validate({"forward": forward, "backward": backward})
    plan = Path(folder) / f"plan-{rank}.json"
    whole_and_cut(tables, exchange).write(plan)
    sharding = recipe.sharding.model_copy(update={"plan": plan})
    trainer = Trainer(recipe.model_copy(update={"sharding": sharding}), RunFolder(Path(folder) / "run"))
    emb = trainer.learner.embeddings
    assert isinstance(emb, ShardedEmbeddingCollection)
    steps = {}
    step = trainer.learner.step

    def counted(*arguments: Any) -> Any:
        answer = step(*arguments)
        steps["bytes"] = dict(emb.traffic.sent_bytes)
        return answer

    trainer.learner.step = counted
    summary = trainer.train()
    sent = {name: count / trainer.step for name, count in steps["bytes"].items()}
    pipe.send((summary, sent))
    dist.destroy_process_group()


def train(data: Path, pair: str, seed: int) -> dict[str, Any]:
    """One run: NE, log loss and AUC of later rows, and bytes a step that both ranks sent."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(1 if pair == ALONE else RANKS):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, str(Path(folder) / "meet"), str(data), folder, pair, seed)
            process = context.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join(20)
    evaluation = answers[0][0]["evaluation"]
    names = sorted({name for _, sent in answers for name in sent})
    bytes_a_step = {name: sum(sent.get(name, 0.0) for _, sent in answers) for name in names}
    return {"pair": pair, "seed": seed, "evaluation": evaluation, "bytes_a_step": bytes_a_step}


def main() -> None:
    """Trains with every codec and prints what each costs in NE."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="for the generated data, kept and reused")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=100, help="train at most so many that are not there yet")
    options = parser.parse_args()
    data = options.workdir / "criteo"
    if not (data / "schema.json").exists():
        shutil.rmtree(data, ignore_errors=True)
        command = [sys.executable, "-m", "megalith", "data", "synth", "criteo", "--out", str(data)]
        rows = ["--rows", str(ROWS), "--valid-rows", "10", "--test-rows", str(TEST_ROWS)]
        subprocess.run([*command, *rows], check=True)
    known: list[dict[str, Any]] = []
    if options.out.exists():
        known = json.loads(options.out.read_text(encoding="utf-8"))["results"]["runs"]
    wanted = [(pair, seed) for seed in (0, 1) for pair in (*PAIRS, ALONE)]
    missing = [one for one in wanted if one not in {(run["pair"], run["seed"]) for run in known}]
    for pair, seed in missing[: options.runs]:
        known.append(train(data, pair, seed))
        settings = {"recipe": "criteo-dlrm", "ranks": RANKS, "rows": ROWS, "test_rows": TEST_ROWS}
        save_result(options.out, result("codec-ne", settings, {"limit": LIMIT, "runs": known}, data))
    base = {run["seed"]: run for run in known if run["pair"] == "fp32/fp32"}
    for run in known:
        reference = base[run["seed"]]
        ne = run["evaluation"]["ne"]
        change = ne / reference["evaluation"]["ne"] - 1
        sent = run["bytes_a_step"]
        if run["pair"] == ALONE:
            print(f"{ALONE:10s} seed {run['seed']}  NE {ne:.6f} ({change:+.4%})")
            continue
        travelling = sent["vectors"] + sent["gradients"]
        before = reference["bytes_a_step"]["vectors"] + reference["bytes_a_step"]["gradients"]
        print(
            f"{run['pair']:10s} seed {run['seed']}  NE {ne:.6f} ({change:+.4%})  vectors "
            f"{sent['vectors'] / 1e6:.3f} MB, gradients {sent['gradients'] / 1e6:.3f} MB a step "
            f"({before / travelling:.2f} times less), ids {sent['indices'] / 1e6:.3f} MB"
        )


if __name__ == "__main__":
    main()
