"""Whether tables fit into memory, asked before any of it is taken; and what would fit where they do not.

On Linux memory is promised freely and given when it is touched: without the question the system would kill
the process half-way, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.hardware.free_memory import available_bytes

_SMALL = 64 << 20
"""Tables up to this size are not asked about."""


@dataclass(frozen=True, slots=True)
class TableMemory:
    """Bytes of some tables: their rows, and what the optimizer keeps of them."""

    weights: int = 0
    state: int = 0

    @property
    def total(self) -> int:
        """Bytes of rows and state together."""
        return self.weights + self.state

    def __add__(self, other: TableMemory) -> TableMemory:
        return TableMemory(self.weights + other.weights, self.state + other.state)


def memory_of(tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer]) -> TableMemory:
    """Bytes of tables that each have an optimizer.

    >>> table = TableSpec(name="t", rows=1000, dim=16, features=("f",))
    >>> memory_of([table], [RowWiseAdaGrad()])
    TableMemory(weights=64000, state=4000)
    """
    found = TableMemory()
    for table, optimizer in zip(tables, optimizers, strict=True):
        numbers = {"none": 0, "row": table.rows, "full": table.rows * table.dim}
        state = 4 * (numbers[optimizer.first_state] + numbers[optimizer.second_state])
        found += TableMemory(table.weight_bytes, state)
    return found


def check_fits(
    tables: Sequence[TableSpec],
    optimizers: Sequence[RowOptimizer],
    ask: Callable[[], int | None] = available_bytes,
    *,
    copies: int = 1,
    share: float = 1.0,
) -> None:
    """Refuses tables that do not fit into the bytes that `ask` says are available; says what would fit.

    `copies` is 2 where a checkpoint is written from a copy; `share` is the part of the tables that has to
    fit here, where other machines hold the rest.
    """
    need = memory_of(tables, optimizers)
    if need.total * copies * share <= _SMALL:
        return
    available = ask()
    if available is None or need.total * copies * share <= available:
        return

    def fits(some: Sequence[TableSpec], theirs: Sequence[RowOptimizer], held: int = copies) -> bool:
        return memory_of(some, theirs).total * held * share <= available

    second = ", twice for checkpoints in the background" if copies > 1 else ""
    here = " on one machine" if share < 1 else ""
    rows, state = format_bytes(need.weights * share), format_bytes(need.state * share)
    changes = list(_changes(tables, optimizers, copies, fits))
    machines = ceil(need.total * copies / available) if available else 0
    if machines > 1:
        changes.append(f"{machines:,} machines with as much memory under torchrun")
    raise PlanError(
        f"The tables need {format_bytes(need.total * copies * share)}{here} ({rows} of rows, {state} of "
        f"optimizer state{second}) and {format_bytes(available)} of memory is available; take "
        f"{', or '.join(changes) if changes else 'fewer or smaller tables'}."
    )


@contextmanager
def taking_memory(tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer]) -> Iterator[None]:
    """What the system refuses all the same, or where it does not say what it has, is a sentence too."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        need = format_bytes(memory_of(tables, optimizers).total)
        raise PlanError(
            f"The system does not give the {need} of memory that the tables need; take fewer or smaller "
            "tables."
        ) from error


def _changes(
    tables: Sequence[TableSpec],
    optimizers: Sequence[RowOptimizer],
    copies: int,
    fits: Callable[..., bool],
) -> Iterator[str]:
    """Each change that alone would do."""
    if copies > 1 and fits(tables, optimizers, 1):
        yield "no background checkpoints (train.background_checkpoints=false)"
    sparing = [RowWiseAdaGrad()] * len(tables)
    if memory_of(tables, sparing).state < memory_of(tables, optimizers).state and fits(tables, sparing):
        yield "optimizer rowwise_adagrad (embeddings.optimizer.kind=rowwise_adagrad)"
    half = [table.model_copy(update={"dtype": "float16"}) for table in tables]
    if half != list(tables) and fits(half, optimizers):
        yield "rows of 16 bits (model.dtype=float16)"
    dim = _largest_dim(tables, lambda some: fits(some, optimizers))
    if dim:
        yield f"dim {dim} (model.dim={dim})"


def _largest_dim(tables: Sequence[TableSpec], fits: Callable[[Sequence[TableSpec]], bool]) -> int:
    """The largest dim that fits where all tables have one, beside those of a single column; else 0."""
    dims = {table.dim for table in tables if table.dim > 1}
    if len(dims) != 1:
        return 0

    def narrower(dim: int) -> list[TableSpec]:
        return [table.model_copy(update={"dim": min(dim, table.dim)}) for table in tables]

    low, high = 0, dims.pop()
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(narrower(middle)) else (low, middle)
    return low
