"""What is run: a model, and settings that differ in what crosses the long link, how, and how long it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

# About 6 ms forward and 12 ms backward a layer on one core: long beside what starting a message costs, and
# much computing for few bytes, as moving bytes takes processor time here that networks elsewhere do not take.
SHAPE: dict[str, int] = {
    "hidden": 256,
    "layers": 8,
    "heads": 8,
    "vocab": 1024,
    "seq": 128,
    "micro_batch": 2,
}
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """`pp` x `dp` ranks over two buildings; `across` says which of the two crosses the long link."""

    name: str
    across: Literal["pipeline", "data"]
    delay_seconds: float
    bits_per_second: float
    pp: int = 1
    dp: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    """A rank's chunks of the model; with pp = 1 the pieces whose gradients are exchanged one by one."""
    micro_batches: int = 6
    extra_in_flight: int = 0
    exchange: Literal["ring", "gloo", "hierarchical"] = "ring"
    overlap: bool = False
    waiting: bool = False
    """Ranks wait as long as operations take instead of computing: there are more ranks than cores."""

    @property
    def ranks(self) -> int:
        """Ranks of both buildings."""
        return self.pp * self.dp

    @property
    def ranks_per_building(self) -> int:
        """Ranks of one building."""
        return self.ranks // 2

    def rank_of(self, stage: int, replica: int) -> int:
        """Ranks are numbered building by building; what crosses has one half in each."""
        return stage * self.dp + replica if self.across == "pipeline" else replica * self.pp + stage

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return asdict(self)


def part_of(stage: int, stages: int) -> dict[str, Any]:
    """What virtual stage `stage` of `stages` holds."""
    layers = SHAPE["layers"] // stages
    return {"layers": layers, "embedding": stage == 0, "head": stage == stages - 1}


def parameters_of(part: dict[str, Any]) -> int:
    """Weights and biases, as model.py makes them."""
    hidden, vocab = SHAPE["hidden"], SHAPE["vocab"]
    layer = 12 * hidden**2 + 13 * hidden
    embedding = vocab * hidden if part["embedding"] else 0
    head = vocab * hidden + vocab + 2 * hidden if part["head"] else 0
    return int(part["layers"] * layer + embedding + head)


MS, MBIT = 1e-3, 1e6

SETTINGS: tuple[Setting, ...] = (
    Setting("1f1b, near", "pipeline", 0.1 * MS, 400 * MBIT, pp=2),
    Setting("gpipe, near", "pipeline", 0.1 * MS, 400 * MBIT, pp=2, schedule="gpipe"),
    Setting("1f1b, 5 ms", "pipeline", 5 * MS, 200 * MBIT, pp=2),
    Setting("interleaved, 5 ms", "pipeline", 5 * MS, 200 * MBIT, pp=2, schedule="interleaved", chunks=2),
    Setting("1f1b, 20 ms", "pipeline", 20 * MS, 200 * MBIT, pp=2),
    Setting("gpipe, 20 ms", "pipeline", 20 * MS, 200 * MBIT, pp=2, schedule="gpipe"),
    Setting("zb-h1, 20 ms", "pipeline", 20 * MS, 200 * MBIT, pp=2, schedule="zb-h1"),
    Setting("1f1b, 60 ms", "pipeline", 60 * MS, 200 * MBIT, pp=2),
    Setting(
        "long-link, 60 ms", "pipeline", 60 * MS, 200 * MBIT, pp=2, schedule="long-link", extra_in_flight=2
    ),
    Setting("1f1b, narrow", "pipeline", 5 * MS, 50 * MBIT, pp=2),
    Setting("data parallel, near", "data", 0.1 * MS, 400 * MBIT, dp=2, micro_batches=4),
    Setting("data parallel, 20 ms", "data", 20 * MS, 400 * MBIT, dp=2, micro_batches=4),
    Setting("data parallel, 60 ms", "data", 60 * MS, 400 * MBIT, dp=2, micro_batches=4),
    Setting("data parallel, narrow", "data", 5 * MS, 100 * MBIT, dp=2, micro_batches=4),
    Setting(
        "overlapped, 5 ms",
        "data",
        5 * MS,
        200 * MBIT,
        dp=2,
        micro_batches=2,
        chunks=4,
        overlap=True,
        schedule="interleaved",
    ),
    Setting("gloo, 20 ms", "data", 20 * MS, 200 * MBIT, dp=2, micro_batches=4, exchange="gloo"),
    Setting("gloo, 20 ms, faster", "data", 20 * MS, 400 * MBIT, dp=2, micro_batches=4, exchange="gloo"),
    Setting("gloo, 60 ms", "data", 60 * MS, 400 * MBIT, dp=2, micro_batches=4, exchange="gloo"),
    Setting("flat ring of 4, 20 ms", "data", 20 * MS, 200 * MBIT, dp=4, micro_batches=2, waiting=True),
    Setting(
        "hierarchical of 4, 20 ms",
        "data",
        20 * MS,
        200 * MBIT,
        dp=4,
        micro_batches=2,
        waiting=True,
        exchange="hierarchical",
    ),
    Setting("pipeline across, data inside", "pipeline", 20 * MS, 200 * MBIT, pp=2, dp=2, waiting=True),
    Setting("data across, pipeline inside", "data", 20 * MS, 200 * MBIT, pp=2, dp=2, waiting=True),
)
