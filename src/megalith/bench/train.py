"""`megalith bench train`: one whole training step of DLRM, beside TorchRec's and one in plain torch.

All sides have the same layers, start values and batches, so TorchRec's losses are ours. TorchRec runs as it
would on one machine: its tables sharded table-wise over a group of one process, FBGEMM's fused kernel inside.
Its batches are built before the clock starts, and nothing wraps its dense part.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megalith.bench.embedding import NUM_BATCHES, check_memory, draw
from megalith.bench.peers import EPS, LEARNING_RATE, OURS, Megalith, Shape, TorchBags, bytes_needed
from megalith.bench.runner import result
from megalith.bench.turns import take_turns
from megalith.core.schema import FeatureSpec
from megalith.models.base import ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig

PEERS = ("torchrec", "torch")
NUM_DENSE = 13
BOTTOM, TOP = (512, 256), (512, 512, 256)
PARTS = ("embedding forward", "dense forward and backward", "embedding backward", "dense optimizer")
Say = Callable[[str], None]
Step = Callable[["Samples"], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Samples:
    """One batch."""

    dense: Tensor
    values: Tensor
    offsets: Tensor
    labels: Tensor


def bench_train(
    shape: Shape,
    peers: Sequence[str],
    repeats: int = 5,
    threads: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Times steps of ours and of every peer, and where the time of ours goes."""
    torch.set_num_threads(threads or torch.get_num_threads())
    need = sum(bytes_needed(name, shape) for name in (OURS, *peers))
    check_memory(f"Training on tables of {shape.tables} x {shape.rows:,} rows", need)
    batches = [draw_samples(shape, seed) for seed in range(NUM_BATCHES)]
    with candidates(shape, peers) as trainers:
        say(f"training steps: {shape}")
        steps: dict[str, Step] = {name: trainer.timed for name, trainer in trainers.items()}
        timings = take_turns(steps, batches, repeats)
        ours = trainers[OURS]
        assert isinstance(ours, Ours)
        say("where the time goes")
        parts = take_turns({OURS: ours.timed_parts}, batches, repeats)[OURS]
        losses = {name: trainer.loss for name, trainer in trainers.items()}
        del steps, ours
    totals = {name: timing["total"] for name, timing in timings.items()}
    results = {
        "candidates": {
            name: {**total.to_dict(), "samples_per_second": total.rate(shape.batch), "loss": losses[name]}
            for name, total in totals.items()
        },
        "speed_ratio": {name: totals[name].median / totals[OURS].median for name in totals if name != OURS},
        "parts": {name: parts[name].to_dict() for name in PARTS},
    }
    settings = {
        **asdict(shape),
        "bottom": [*BOTTOM, shape.dim],
        "top": [*TOP, 1],
        "dense_features": NUM_DENSE,
        "peers": list(peers),
        "repeats": repeats,
        "batches": NUM_BATCHES,
        "threads": torch.get_num_threads(),
    }
    return result("train", settings, results, None)


def draw_samples(shape: Shape, seed: int) -> Samples:
    ids = draw(shape, seed)
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape.batch, NUM_DENSE, generator=generator)
    labels = (torch.rand(shape.batch, generator=generator) < 0.25).float()
    return Samples(dense, ids.values, ids.offsets, labels)


class Trainer:
    """A model with its tables and optimizers; `loss` is that of its last step."""

    dense_optimizer: torch.optim.Optimizer
    loss = float("nan")

    def logits(self, batch: Samples) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define logits(batch).")

    def prepare(self, batch: Samples) -> None:
        """What a data loader would have done."""

    def step_tables(self) -> None:
        """For tables that the backward pass has not updated already."""

    def timed(self, batch: Samples) -> dict[str, float]:
        self.prepare(batch)
        start = perf_counter()
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(self.logits(batch), batch.labels)
        loss.backward()
        self.dense_optimizer.step()
        self.step_tables()
        end = perf_counter()
        self.loss = loss.item()
        return {"total": end - start}


class Ours(Trainer):
    def __init__(self, shape: Shape) -> None:
        self.tables = Megalith(shape)
        self.dense = dense_model(shape)
        # As our trainer makes it.
        self.dense_optimizer = torch.optim.Adagrad(self.dense.parameters(), lr=LEARNING_RATE, fused=True)

    def logits(self, batch: Samples) -> Tensor:
        logits: Tensor = self.dense(batch.dense, self.tables.embeddings(batch.values, batch.offsets))
        return logits

    def timed_parts(self, batch: Samples) -> dict[str, float]:
        """The same step, cut where the vectors pass from the tables to the dense part."""
        times = [perf_counter()]
        embedded = self.tables.embeddings(batch.values, batch.offsets)
        times.append(perf_counter())
        self.dense_optimizer.zero_grad(set_to_none=True)
        passed = embedded.detach().requires_grad_()
        F.binary_cross_entropy_with_logits(self.dense(batch.dense, passed), batch.labels).backward()
        times.append(perf_counter())
        embedded.backward(passed.grad)
        times.append(perf_counter())
        self.dense_optimizer.step()
        times.append(perf_counter())
        spans = pairwise(times)
        return {name: end - start for name, (start, end) in zip(PARTS, spans, strict=True)}


class PlainTorch(Trainer):
    """What a user of torch alone writes: an nn.EmbeddingBag a table with sparse gradients, nn.Linear, bmm."""

    def __init__(self, shape: Shape, ours: Ours) -> None:
        self.tables = TorchBags(shape)
        self.bottom = plain_stack([NUM_DENSE, *BOTTOM, shape.dim], last_activation=True)
        pairs = (shape.tables + 1) * shape.tables // 2
        self.top = plain_stack([shape.dim + pairs, *TOP, 1], last_activation=False)
        self.rows, self.columns = torch.tril_indices(shape.tables + 1, shape.tables + 1, offset=-1)
        self.dense_optimizer = dense_optimizer(nn.ModuleList([self.bottom, self.top]))
        copy_tables(self.tables.weights(), ours)
        with torch.no_grad():
            own = [*self.bottom.parameters(), *self.top.parameters()]
            for target, value in zip(own, ours.dense.parameters(), strict=True):
                target.copy_(value)

    def logits(self, batch: Samples) -> Tensor:
        first = self.bottom(batch.dense)
        vectors = torch.stack([first, *self.tables.pooled(batch.values, batch.offsets)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.rows, self.columns]
        logits: Tensor = self.top(torch.cat([first, products], dim=1)).squeeze(1)
        return logits

    def step_tables(self) -> None:
        self.tables.optimizer.step()
        self.tables.optimizer.zero_grad(set_to_none=True)


def plain_stack(widths: Sequence[int], last_activation: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, out in pairwise(widths):
        layers += [nn.Linear(width, out), nn.ReLU()]
    return nn.Sequential(*(layers if last_activation else layers[:-1]))


class TorchRec(Trainer):
    """torchrec.models.dlrm.DLRM, its tables sharded over the process group of this one process."""

    def __init__(self, shape: Shape, ours: Ours) -> None:
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.models.dlrm import DLRM
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        self.keys = [f"f{number}" for number in range(shape.tables)]
        tables = [
            EmbeddingBagConfig(
                name=f"t{number}", embedding_dim=shape.dim, num_embeddings=shape.rows, feature_names=[key]
            )
            for number, key in enumerate(self.keys)
        ]
        model = DLRM(
            EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
            NUM_DENSE,
            [*BOTTOM, shape.dim],
            [*TOP, 1],
            dense_device=torch.device("cpu"),
        )
        options = {"lr": LEARNING_RATE, "eps": EPS}
        apply_optimizer_in_backward(RowWiseAdagrad, model.sparse_arch.parameters(), options)
        wanted = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=1, compute_device="cpu"),
            constraints={table.name: wanted for table in tables},
        )
        sharders: list[Any] = [EmbeddingBagCollectionSharder()]
        self.model = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=planner.plan(model, sharders),
            sharders=sharders,
            init_data_parallel=False,
        )
        inner = self.model.module
        self.dense_optimizer = dense_optimizer(nn.ModuleList([inner.dense_arch, inner.over_arch]))
        (kernel,) = inner.sparse_arch.embedding_bag_collection._lookups[0]._emb_modules
        copy_tables(kernel._emb_module.split_embedding_weights(), ours)
        copy_dense(ours.dense, inner, shape)

    def prepare(self, batch: Samples) -> None:
        from torchrec import KeyedJaggedTensor

        self.sparse = KeyedJaggedTensor(
            self.keys, batch.values, lengths=batch.offsets.diff(), offsets=batch.offsets
        )

    def logits(self, batch: Samples) -> Tensor:
        logits: Tensor = self.model(batch.dense, self.sparse).squeeze(1)
        return logits


def dense_model(shape: Shape) -> nn.Module:
    """Our DLRM, the same start values each time."""
    torch.manual_seed(0)
    features = tuple(FeatureSpec(name=f"f{n}", num_ids=shape.rows) for n in range(shape.tables))
    config = DLRMConfig(dim=shape.dim, bottom=MLPConfig(layers=BOTTOM), top=MLPConfig(layers=TOP))
    return config.build(ModelInputs(NUM_DENSE, features))


def dense_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE)


@torch.no_grad()
def copy_tables(weights: Sequence[Tensor], ours: Ours) -> None:
    for own, source in zip(weights, ours.tables.weights(), strict=True):
        own.copy_(source)


@torch.no_grad()
def copy_dense(source: nn.Module, model: Any, shape: Shape) -> None:
    """Our dense weights into TorchRec's model, whose pairs of vectors come in another order."""
    targets = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    for own, value in zip(targets, source.parameters(), strict=True):
        own.copy_(value)
    # We list pair (b, a) of a < b by b, TorchRec by a.
    first, second = torch.triu_indices(shape.tables + 1, shape.tables + 1, offset=1)
    pairs = second * (second - 1) // 2 + first
    weight = next(model.over_arch.parameters())
    weight[:, shape.dim :] = weight[:, shape.dim + pairs]


@contextmanager
def candidates(shape: Shape, peers: Sequence[str]) -> Iterator[dict[str, Trainer]]:
    """Ours and the peers, ready to train."""
    ours = Ours(shape)
    trainers: dict[str, Trainer] = {OURS: ours}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # TorchRec warns of its own parts.
        warnings.simplefilter("ignore")
        for name in ("torchrec", "torch.fx._symbolic_trace"):
            logging.getLogger(name).setLevel(logging.ERROR)
        grouped = "torchrec" in peers
        if grouped:
            place = (Path(folder) / "group").as_uri()
            torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        try:
            for name in peers:
                trainers[name] = {"torchrec": TorchRec, "torch": PlainTorch}[name](shape, ours)
            yield trainers
        finally:
            trainers.clear()
            gc.collect()
            if grouped:
                torch.distributed.destroy_process_group()
