"""A training step over two hosts with a network between them: what codecs save in bytes and in time.

    sudo python benchmarks/two_hosts.py --out benchmarks/results/two-hosts.json

Two network namespaces of this machine stand for hosts; the link between them has a rate (tc tbf), or none.
Each runs one rank of the benchmark's DLRM with one thread and shares no memory with the other: everything
goes through sockets. Bytes are those that the interface counted, beside those that the runtime says it sent.
Codecs take turns under every rate. Needs root and iproute2; nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MEGALITH_SHARED_MEMORY"] = "0"
os.environ["GLOO_SOCKET_IFNAME"] = "eth0"

import torch
import torch.distributed as dist

from megalith.bench.peers.lookup import LookupShape
from megalith.bench.runner import Timing, result, save_result
from megalith.bench.train.rank_candidates import MegalithRank, part_of
from megalith.bench.train.rank_plans import make_plan
from megalith.bench.train.rank_worker import STEPS_A_TURN
from megalith.bench.train.samples import draw_samples
from megalith.sharding.plan import ExchangeConfig

SHAPE = LookupShape(tables=26, rows=200_000, dim=64, batch=2048, lookups=1)
CODECS = ("fp32", "fp16", "int8")
RATES = (1.0, 2.5, None)
"""Gigabits a second; None: as fast as the processor copies."""
HOSTS = ("megalith-host0", "megalith-host1")
_COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


def main() -> None:
    """The command: two namespaces as hosts, every codec at every rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        work(options.rank, options.folder, options.repeats)
        return
    if os.geteuid() != 0 or shutil.which("tc") is None:
        sys.exit(
            "Network namespaces need root and iproute2; run it with sudo after `apt-get install iproute2`."
        )
    rows = []
    connect()
    try:
        for rate in RATES:
            limit(rate)
            rows += measure(rate, options.repeats)
    finally:
        remove()
    settings = {"shape": str(SHAPE), "ranks": 2, "threads": 1, "repeats": options.repeats}
    found = result("two-hosts", settings, {"rows": rows}, None)
    for row in rows:
        limited = "no limit" if row["gigabits"] is None else f"{row['gigabits']} Gbit/s"
        tables, dense = row["counted_bytes"] / 2**20, row["dense_bytes"] / 2**20
        print(
            f"{limited:>10}  {row['codec']}  {1e3 * row['median_seconds']:6.1f} ms "
            f"(spread {row['spread']:.0%})  on the wire {row['wire_bytes'] / 2**20:.2f} MiB a step and rank; "
            f"sent for tables {tables:.2f}, for the dense part {dense:.2f}"
        )
    if options.out:
        save_result(options.out, found)


def connect() -> None:
    """Makes the two hosts and the link between them."""
    remove()
    for host in HOSTS:
        run("ip", "netns", "add", host)
    run(
        "ip",
        "link",
        "add",
        "eth0",
        "netns",
        HOSTS[0],
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        HOSTS[1],
    )
    for number, host in enumerate(HOSTS):
        run("ip", "-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", host, "link", "set", device, "up")


def limit(gigabits: float | None) -> None:
    """Sets the rate of the link; None removes the limit."""
    for host in HOSTS:
        if gigabits is None:
            run("tc", "-n", host, "qdisc", "del", "dev", "eth0", "root")
            continue
        rate = ("rate", f"{gigabits * 1e9:.0f}bit", "burst", "1mb", "latency", "50ms")
        run("tc", "-n", host, "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)


def remove() -> None:
    """Removes the hosts, if there are any."""
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def run(*command: str) -> None:
    """Runs a command of the system; ends with a sentence where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}; is the kernel built with veth and tbf?"
        )


def measure(gigabits: float | None, repeats: int) -> list[dict[str, Any]]:
    """Rows of all codecs at the link's present rate."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", host, sys.executable, __file__),
                    *("--rank", str(rank), "--folder", folder, "--repeats", str(repeats)),
                ]
            )
            for rank, host in enumerate(HOSTS)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            sys.exit("A rank has failed; its message is above.")
        rows = json.loads((Path(folder) / "rows.json").read_text(encoding="utf-8"))
    return [{"gigabits": gigabits, **row} for row in rows]


def work(rank: int, folder: Path, repeats: int) -> None:
    """One rank: steps with every codec in turns, timed; rank 0 writes the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(folder / "rendezvous").as_uri(), rank=rank, world_size=2)
    part = [part_of(draw_samples(SHAPE, number % 3), SHAPE, rank, 2) for number in range(STEPS_A_TURN)]
    plan = make_plan(SHAPE, 2, "table_wise")
    sides = {}
    for codec in CODECS:
        exchange = ExchangeConfig(forward=codec, backward=codec)
        sides[codec] = MegalithRank(SHAPE, plan.model_copy(update={"exchange": exchange}))
        sides[codec].ready(part)
    seconds: dict[str, list[float]] = {codec: [] for codec in CODECS}
    wire: dict[str, int] = dict.fromkeys(CODECS, 0)
    for turn in range(1 + repeats):
        for codec, side in sides.items():
            side.ready(part)
            dist.barrier()
            if not turn:
                side.sharded.traffic.reset()
            before, start = int(_COUNTER.read_text()), perf_counter()
            side.turn(len(part))
            slowest = torch.tensor([perf_counter() - start])
            sent = int(_COUNTER.read_text()) - before
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if turn:
                seconds[codec].append(float(slowest) / len(part))
                wire[codec] += sent
    if rank == 0:
        steps = repeats * len(part)
        rows = [
            {
                "codec": codec,
                **Timing(tuple(seconds[codec])).to_dict(),
                "wire_bytes": wire[codec] / steps,
                "counted_bytes": side.sharded.traffic.total_bytes / (steps + len(part)),
                "dense_bytes": sum(weight.numel() * 4 for weight in side.dense.parameters()),
            }
            for codec, side in sides.items()
        ]
        (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    for side in sides.values():
        side.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
