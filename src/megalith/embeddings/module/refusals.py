"""Surroundings in which tables that take their step in the backward pass would train wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megalith.comm.process_group import rank_in
from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec


def is_in_backward() -> bool:
    """Whether autograd runs a backward pass on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def refuse_transforms() -> None:
    """`torch.func` and `vmap` compute with tensors that kernels cannot read, and see no update."""
    if torch._C._are_functorch_transforms_active():
        raise ConfigError(
            "Tables cannot be looked up inside torch.func or vmap, which do not see the step that they take "
            "in backward(); look up outside, and pass the vectors in."
        )


def refuse_copies_on_ranks() -> None:
    """Ranks that each train a collection of their own drift apart: nothing adds up their gradients."""
    world_size = rank_in(None).world_size
    if world_size > 1:
        raise ConfigError(
            f"Each of the {world_size} processes of this group would train an EmbeddingCollection of its "
            "own, and DistributedDataParallel does not keep them equal; use mg.ShardedEmbeddingCollection, "
            "or make it with independent=True if they are meant to differ."
        )


def refuse_double_backward() -> None:
    """Within a backward pass of a lookup."""
    if torch.is_grad_enabled():
        raise ConfigError(
            "A lookup has no second derivative: its backward pass changes the tables; leave out "
            "create_graph=True, or give it the vectors as a leaf: emb(...).detach().requires_grad_()."
        )


def refuse_second_step(*, accumulates: bool = True) -> None:
    """A lookup whose tables have taken their step, of a collection that could accumulate gradients."""
    other = ", or make the collection with accumulate=True and call its step()" if accumulates else ""
    raise ConfigError(
        "The tables took their step in an earlier backward pass of this lookup; add the losses up and call "
        f"backward() once{other}."
    )


def refuse_stale_rows(tables: Sequence[TableSpec], *, weighted: bool) -> None:
    """A backward pass that needs the rows that were read, where the tables took a step since."""
    largest = next((table.name for table in tables if table.pooling == "max"), None)
    if weighted or largest is not None:
        what = "sample weights" if weighted else f"the largest values of table '{largest}'"
        raise ConfigError(
            f"The tables took a step after this lookup, whose gradients of {what} need the rows that it "
            "read; call backward() before other lookups take their step, or make an EmbeddingCollection with "
            "accumulate=True."
        )


def refuse_changed_rows() -> None:
    """A lookup that gradient checkpointing repeats, after rows have changed."""
    raise ConfigError(
        "Gradient checkpointing looks up again in a backward pass that has updated the tables already; leave "
        "the lookup outside of checkpoint(), or make the collection with accumulate=True."
    )


def refuse_repeated_ids() -> None:
    """A lookup that gradient checkpointing repeats, in stores where a use counts."""
    raise ConfigError(
        "Gradient checkpointing looks up twice, and adaptive and dynamic tables would count every id twice; "
        "leave the lookup outside of checkpoint()."
    )


def refuse_averages() -> None:
    """A copy whose parameters somebody has written, as an average of weights is."""
    raise ConfigError(
        "Somebody wrote into the parameters of this copy, as AveragedModel does, and tables are not among "
        "them: it holds rows as they were when it was copied; give the copy the collection itself "
        "(average.module.emb = model.emb), or refresh its tables with load_state_dict()."
    )
