"""The dense part on many ranks: a copy on each, whose gradients are summed (DDP) as backward finds them.

One process sees the whole batch; here each rank sees a slice. What a model computes over the batch must
therefore be computed over all slices: batch normalization takes its statistics from all ranks.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from megalith.comm.peer_lost import peer_errors
from megalith.comm.ranks import Ranks
from megalith.sharding.runtime.collection import ResolvedBatch, ShardedEmbeddingCollection
from megalith.train.learner.lookup_model import LookupModel

# Running statistics are the same on all ranks without being sent. Newer torch calls the option otherwise.
_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_KEEP_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"


class Replica(nn.Module):
    """One rank's copy of `dense`; all ranks call it together. Parameters stay those of `dense`.

    It looks vectors up itself: what the model can compute without them is computed while they travel, and in
    the backward pass while their gradients do.
    """

    def __init__(self, dense: nn.Module, embeddings: ShardedEmbeddingCollection, ranks: Ranks) -> None:
        super().__init__()
        assert ranks.group is not None
        for module in dense.modules():
            if isinstance(module, nn.BatchNorm1d):
                # In place, so that the names and tensors of the state stay what they are.
                module.__class__ = _SyncBatchNorm
        self._model: nn.Module = _WithUnusedParameter(LookupModel(dense, embeddings))
        if any(parameter.requires_grad for parameter in dense.parameters()):
            assert embeddings.comm is not None
            # A branch of its own: buckets travel while the tables' gradients do.
            comm = embeddings.comm.branch()
            options: dict[str, Any] = {_KEEP_BUFFERS: False}
            self._model = DistributedDataParallel(
                self._model,
                process_group=comm.group,
                gradient_as_bucket_view=True,
                # Torch's default, given explicitly: otherwise the first bucket has one megabyte.
                bucket_cap_mb=25,
                # Without it DDP lays its buckets out anew after the first step, and with them the order in
                # which three ranks or more add up: a resumed run would differ in the last bit.
                find_unused_parameters=True,
                **options,
            )
            # DDP itself would divide by the number of ranks. It refuses annotations that are text, as ours
            # are; a lambda has none.
            self._model.register_comm_hook(
                comm.all_reduce(),
                lambda all_reduce, bucket: all_reduce.start_bucket(bucket.index(), bucket.buffer()),
            )

    def forward(self, features: Tensor, resolved: ResolvedBatch) -> Tensor:
        """Logits of this rank's samples, from its features and its resolved ids."""
        logits: Tensor = self._model(features, resolved)
        return logits

    @torch.no_grad()
    def predict(self, features: Tensor, resolved: ResolvedBatch) -> Tensor:
        """The same without gradients, which DDP has no part in."""
        model = self._model
        module = model.module if isinstance(model, DistributedDataParallel) else model
        logits: Tensor = module(features, resolved)
        return logits


class _WithUnusedParameter(nn.Module):
    """DDP, which is to look for unused parameters, warns if it finds none."""

    def __init__(self, model: LookupModel) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor, resolved: ResolvedBatch) -> Tensor:
        logits: Tensor = self.model(features, resolved)
        return logits


class _AllReduceSum(torch.autograd.Function):
    """A sum over ranks. Each rank's loss depends on it, so its gradient is a sum over ranks again."""

    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        with peer_errors():
            dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return _AllReduceSum.forward(_, gradient.contiguous())


def _all_reduce_sum(tensor: Tensor) -> Tensor:
    total: Tensor = _AllReduceSum.apply(tensor)
    return total


class _SyncBatchNorm(nn.BatchNorm1d):
    """Batch normalization over the samples of all ranks; torch's `SyncBatchNorm` runs on GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes a slice of the batch by the statistics of the whole batch."""
        if not self.training:
            return super().forward(input)
        count = _all_reduce_sum(input.new_tensor(float(len(input))))
        mean = _all_reduce_sum(input.sum(0)) / count
        centred = input - mean
        variance = _all_reduce_sum(centred.square().sum(0)) / count
        if self.track_running_stats:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)
            with torch.no_grad():
                assert self.running_mean is not None
                assert self.running_var is not None
                self.running_mean.lerp_(mean.detach(), share)
                self.running_var.lerp_(unbiased, share)
        scaled = centred * torch.rsqrt(variance + self.eps)
        return scaled if self.weight is None else scaled * self.weight + self.bias
