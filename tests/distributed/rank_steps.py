"""Steps that ranks take together, each on its part of the same batches."""

import torch

from megalith.comm.ranks import Ranks


def own_samples(batch):
    """From where to where the samples of a batch are this rank's."""
    ranks = Ranks.all()
    edges = [batch * one // ranks.world_size for one in range(ranks.world_size + 1)]
    return edges[ranks.rank : ranks.rank + 2]


def take_steps(embeddings, first, last, own, part_of, *, ahead=0):
    """Trains on `part_of(step, *own)`, resolved `ahead` of their turn; yields every step that was taken."""
    resolved = []
    for step in range(first, last):
        while len(resolved) <= ahead and step + len(resolved) < last:
            ids, offsets, *_ = part_of(step + len(resolved), *own)
            resolved.append(embeddings.resolve(embeddings.exchange(ids, offsets), trains=True))
        found = embeddings.finish_lookup(embeddings.start_lookup(resolved.pop(0)))
        _, _, pooled, sequence = part_of(step, *own)
        torch.autograd.backward([found.pooled, found.sequences["c", "c"]], [pooled, sequence])
        yield step
