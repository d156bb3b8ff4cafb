"""`CommContext`: how this rank reaches the others of a group, after one handshake between all of them.

context = CommContext.of(group)             # None for one process
vectors = context.all_to_all("vectors")     # of the context's own process group and pipes
ahead = context.branch()                    # the same ranks; its collectives keep an order of their own
"""

from __future__ import annotations

import torch.distributed as dist

from megalith.comm.all_reduce import AllReduce
from megalith.comm.all_to_all import AllToAll
from megalith.comm.peer_pipes import PeerPipes
from megalith.comm.process_group import rank_in, subgroup
from megalith.comm.shared_buffer import LocalPeers
from megalith.comm.traffic import TrafficCounter


class CommContext:
    """A process group, what is known of its ranks, pipes to those of this host, and counted bytes.

    Owned by whoever exchanges: the sharded collection has one for vectors and a branch for ids. Everything
    that uses one context goes in the same order on all ranks; what may overlap takes a branch.
    """

    def __init__(self, group: dist.ProcessGroup, peers: LocalPeers, traffic: TrafficCounter) -> None:
        self.group, self.peers, self.traffic = group, peers, traffic
        self.rank, self.world_size, _ = rank_in(group)
        self._pipes: PeerPipes | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, traffic: TrafficCounter | None = None) -> CommContext | None:
        """A context over a new group of the same ranks as `group`, None being all; None for one process."""
        own = subgroup(group, range(rank_in(group).world_size))
        return None if own is None else cls.over(own, traffic)

    @classmethod
    def over(cls, group: dist.ProcessGroup, traffic: TrafficCounter | None = None) -> CommContext:
        """A context over this very group, which nobody else may use then."""
        rank, world_size, _ = rank_in(group)
        return cls(group, LocalPeers(group, rank, world_size), traffic or TrafficCounter())

    def branch(self) -> CommContext:
        """The same ranks with a process group and pipes of their own; all ranks call it together."""
        group = subgroup(self.group, range(self.world_size))
        assert group is not None
        return CommContext(group, self.peers, self.traffic)

    def with_own_pipes(self) -> CommContext:
        """The same group with pipes of its own: what waits on them does not hold up what uses others."""
        return CommContext(self.group, self.peers, self.traffic)

    def all_to_all(self, name: str, depth: int = 1) -> AllToAll:
        """An all-to-all whose bytes are counted as `name`; all ranks ask for it together.

        Exchanges over the same context are waited for in the order in which they were started.
        """
        return AllToAll(name, self.group, self.rank, self.peers, self._shared_pipes(), self.traffic, depth)

    def all_reduce(self) -> AllReduce:
        """A sum over ranks, bucket by bucket or at once; all ranks ask for it together."""
        return AllReduce(self.group, self.rank, self.world_size, self.peers)

    def _shared_pipes(self) -> PeerPipes:
        if self._pipes is None:
            self._pipes = PeerPipes(self.group, self.rank, self.peers)
        return self._pipes
