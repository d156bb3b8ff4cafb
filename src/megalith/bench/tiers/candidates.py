"""Who trains on the stream: tiered tables, the same in memory, a memory-mapped file, RocksDB."""

from __future__ import annotations

import mmap
import shutil
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from typing import Any, Protocol

import torch
from torch import Tensor

from megalith.bench.tiers.stream import TierStream
from megalith.core.schema import FeatureSpec, TableSpec
from megalith.core.store_spec import StoreKind
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.embeddings.stores.settings import TieredMemory
from megalith.models.base import ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig

DEPTH = 4
"""Batches that are resolved before the one that is computed."""
_OPTIMIZER = RowWiseAdaGrad(lr=0.01, eps=1e-8)


class StreamTrainer(Protocol):
    """Trains tables on batches of dense ids."""

    def train(self, batches: Sequence[Tensor]) -> None:
        """A forward pass, a backward pass and an update for each."""

    def report(self) -> dict[str, Any]:
        """What it counted, and its settings."""

    def close(self) -> None:
        """Removes its files."""


class DensePart:
    """The dense layers of DLRM over looked up rows, trained by SGD on random labels."""

    def __init__(self, stream: TierStream) -> None:
        random = torch.Generator().manual_seed(0)
        features = tuple(FeatureSpec(name=f"f{n}", num_ids=stream.rows) for n in range(stream.features))
        config = DLRMConfig(
            dim=stream.dim, bottom=MLPConfig(layers=(512, 256)), top=MLPConfig(layers=(512, 512, 256))
        )
        self.model = config.build(ModelInputs(13, features))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._dense = torch.rand(stream.batch, 13, generator=random)
        self._labels = torch.randint(2, (stream.batch,), generator=random).float()

    def step(self, pooled: Tensor) -> None:
        """Forward, backward into the tables, and an update of the dense layers."""
        logits = self.model(self._dense, pooled)
        self._optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, self._labels).backward()
        self._optimizer.step()


class CollectionTrainer:
    """Ours: `EmbeddingCollection`, whole in memory, or tiered with rows resolved ahead by a thread.

    Rows are looked up and updated with a fixed gradient, or by a whole DLRM once it has its dense part.
    """

    def __init__(self, stream: TierStream, memory: TieredMemory | None) -> None:
        self.stream, self.memory = stream, memory
        self.dense_part: DensePart | None = None
        store: StoreKind = "dense" if memory is None else "tiered"
        rows = stream.rows if memory is None else stream.declared
        self.tables = [
            TableSpec(name=f"t{n}", rows=rows, dim=stream.dim, features=(f"f{n}",), store=store)
            for n in range(stream.features)
        ]
        self.collection = EmbeddingCollection(self.tables, optimizer=_OPTIMIZER, seed=0, memory=memory)
        self._gradient = torch.full((stream.batch, stream.features * stream.dim), 1e-3)

    def train(self, batches: Sequence[Tensor]) -> None:
        """Steps on all of them; rows of later batches are resolved meanwhile."""
        offsets = self.stream.offsets
        if self.memory is None:
            for values in batches:
                self._step(self.collection(values, offsets))
            return
        ready: Queue[ResolvedIds | BaseException] = Queue(maxsize=DEPTH)
        thread = threading.Thread(target=self._resolve, args=(batches, offsets, ready))
        thread.start()
        for _ in batches:
            resolved = ready.get()
            if isinstance(resolved, BaseException):
                thread.join()
                raise resolved
            pending = self.collection.start_lookup(resolved)
            self._step(self.collection.finish_lookup(pending).pooled)
        thread.join()

    def _step(self, pooled: Tensor) -> None:
        if self.dense_part is None:
            pooled.backward(self._gradient)
        else:
            self.dense_part.step(pooled)

    def _resolve(
        self, batches: Sequence[Tensor], offsets: Tensor, ready: Queue[ResolvedIds | BaseException]
    ) -> None:
        assert self.memory is not None
        window, coming = self.memory.window, deque(batches)
        known: deque[Any] = deque()
        try:
            while known or coming:
                while coming and len(known) <= window:
                    values = self.stream.declared_ids(coming.popleft())
                    indices = self.collection.exchange(values, offsets)
                    known.append(indices)
                    self.collection.expect(indices, len(known))
                ready.put(self.collection.resolve(known.popleft(), trains=True, wait=True))
        except BaseException as error:  # handed to the thread that computes
            ready.put(error)

    def report(self) -> dict[str, Any]:
        """Counts and bytes of the stores."""
        return {
            "counts": self.collection.counts()._asdict(),
            "bytes": asdict(self.collection.bytes()),
            "settings": None
            if self.memory is None
            else self.memory.model_dump(mode="json", exclude={"path"}),
        }

    def close(self) -> None:
        """Removes the rows on disk."""
        del self.collection
        if self.memory is not None and self.memory.path is not None:
            shutil.rmtree(self.memory.path, ignore_errors=True)


class GatheredTrainer(ABC):
    """A store of rows by key; the rows of a batch are gathered, trained by our kernels, and put back."""

    def __init__(self, stream: TierStream) -> None:
        self.stream = stream
        names = tuple(f"f{n}" for n in range(stream.features))
        most = stream.features * stream.batch
        table = TableSpec(name="gathered", rows=most, dim=stream.dim, features=names)
        self.collection = EmbeddingCollection([table], optimizer=_OPTIMIZER, seed=0)
        self._weight = self.collection.weight("gathered")
        (self._state,) = self.collection.state("gathered").values()
        self._gradient = torch.full((stream.batch, stream.features * stream.dim), 1e-3)
        self._first = torch.arange(stream.features).repeat_interleave(stream.batch) * stream.rows

    def train(self, batches: Sequence[Tensor]) -> None:
        """Steps on all of them, one after the other: a row must be put back before it is read again."""
        dim, offsets = self.stream.dim, self.stream.offsets
        for values in batches:
            keys, inverse = torch.unique(values + self._first, return_inverse=True)
            rows = self.read(keys)
            self._weight[: len(keys)] = rows[:, :dim]
            self._state[: len(keys)] = rows[:, dim].view_as(self._state[: len(keys)])
            self.collection(inverse, offsets).backward(self._gradient)
            rows = torch.cat([self._weight[: len(keys)], self._state[: len(keys)].view(-1, 1)], dim=1)
            self.write(keys, rows)

    @abstractmethod
    def read(self, keys: Tensor) -> Tensor:
        """Rows with their state, [keys, dim + 1]."""

    @abstractmethod
    def write(self, keys: Tensor, rows: Tensor) -> None:
        """Puts rows back."""


class MappedTrainer(GatheredTrainer):
    """A memory-mapped file of rows, updated in place; the system chooses which pages stay in memory."""

    def __init__(self, stream: TierStream, folder: Path) -> None:
        super().__init__(stream)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        width, rows = stream.dim + 1, stream.features * stream.rows
        path = folder / "rows.bin"
        with path.open("w+b") as file:
            file.truncate(rows * width * 4)
            mapped = mmap.mmap(file.fileno(), 0)
        # A page for a row that is not there; reading around it would take room from pages that are used.
        mapped.madvise(mmap.MADV_RANDOM)
        self._rows = torch.frombuffer(mapped, dtype=torch.float32).view(rows, width)

    def read(self, keys: Tensor) -> Tensor:
        """Gathers from the map."""
        return self._rows[keys]

    def write(self, keys: Tensor, rows: Tensor) -> None:
        """Scatters into the map."""
        self._rows[keys] = rows

    def report(self) -> dict[str, Any]:
        """Its settings."""
        return {"settings": {"file": "mmap with MADV_RANDOM", "rows": "updated in place"}}

    def close(self) -> None:
        """Removes the file."""
        del self._rows
        shutil.rmtree(self.folder, ignore_errors=True)
