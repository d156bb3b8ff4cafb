"""How long training waits for data: readers on one core, training on the other.

    quiet python benchmarks/reader_wait.py --data DIR --out benchmarks/results/reader-wait.json

The recipe criteo-dlrm trains with one thread. `local` is the trainer's own reading thread, both threads free
on two cores. `ray` is a cluster of Ray with one reader that is pinned to one core, the trainer to the other:
transfers, the object store and Ray itself share the reader's core. They take turns. Waiting is that of the
run's own meter (metrics.jsonl), without the first report, in which readers start. DIR is made by
`megalith data synth criteo --rows 2000000 --out DIR`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megalith.bench.runner import result, save_result

ENGINES = ("local", "ray")
REPORT_EVERY = 50
ASKED = {"local": 0.02, "ray": 0.05}
"""Shares of the step that waiting is to stay under."""


def main() -> None:
    """The command: both engines, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("Two cores are needed: one for readers, one for training.")
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(options.repeats):
        for engine in ENGINES:
            with tempfile.TemporaryDirectory() as folder:
                found[engine].append(measure(engine, options, cores, Path(folder)))
    rows = []
    for engine, runs in found.items():
        rows.append(
            {
                "engine": engine,
                "wait_share": statistics.median(run["wait_share"] for run in runs),
                "samples_per_second": statistics.median(run["samples_per_second"] for run in runs),
                "asked_share": ASKED[engine],
                "runs": runs,
            }
        )
        print(
            f"{engine:>6}: waits {rows[-1]['wait_share']:.2%} of the time "
            f"(asked: under {ASKED[engine]:.0%}), {rows[-1]['samples_per_second']:,.0f} samples/s; runs "
            + ", ".join(f"{run['wait_share']:.2%}" for run in runs)
        )
    if options.out:
        settings = {
            "recipe": "criteo-dlrm",
            "steps": options.steps,
            "repeats": options.repeats,
            "cores": cores,
        }
        save_result(options.out, result("reader-wait", settings, {"rows": rows}, options.data))


def measure(engine: str, options: argparse.Namespace, cores: list[int], folder: Path) -> dict[str, Any]:
    """One run of an engine: the share of its time that it waited, and its rate, after the first report."""
    command = [
        *(sys.executable, "-m", "megalith", "train", "criteo-dlrm", f"data.path={options.data}"),
        *(f"train.steps={options.steps}", f"train.log_every={REPORT_EVERY}", "train.tensorboard=false"),
        *("data.threads=1", "train.eval_batches=1", "--out", str(folder / "run"), "--json"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if engine == "local":
        train(command, environment)
    else:
        trainer, reader = cores
        with cluster(reader, environment) as address:
            tier = f"ingest={{engine: ray, address: '{address}'}}"
            train(["taskset", "-c", str(trainer), *command, tier], environment)
    entries = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    told = [entry for entry in entries if entry["kind"] == "train"][1:]
    seconds = sum(entry["seconds"] for entry in told)
    steps = len(told) * REPORT_EVERY
    return {
        "wait_share": sum(entry["wait_seconds"] for entry in told) / seconds,
        "step_seconds": seconds / steps,
        "samples_per_second": steps * 2048 / seconds,
    }


def train(command: list[str], environment: dict[str, str]) -> None:
    """Runs the trainer; ends with what it says where it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or done.stdout.strip())


@contextmanager
def cluster(core: int, environment: dict[str, str]) -> Iterator[str]:
    """A cluster of Ray with one reader, on one core; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *("taskset", "-c", str(core), ray_command(), "start", "--head", "--block", "--port", str(port)),
        *(
            "--node-ip-address",
            "127.0.0.2",
            "--num-cpus",
            "1",
            "--num-gpus",
            "0",
            "--include-dashboard=false",
        ),
        *("--object-store-memory", str(2 << 30), "--disable-usage-stats"),
    ]
    quiet = {**environment, "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert head.stdout is not None
        said = []
        for line in head.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                break
        else:
            sys.exit("".join(said))
        yield f"127.0.0.2:{port}"
    finally:
        # It ends all that it has started.
        head.terminate()
        head.communicate()


def ray_command() -> str:
    """The command beside this Python, or the one on the path."""
    beside = Path(sys.executable).parent / "ray"
    found = str(beside) if beside.exists() else shutil.which("ray")
    return found or sys.exit("Ray is not installed; install it with `pip install 'megalith[ray]'`.")


if __name__ == "__main__":
    main()
