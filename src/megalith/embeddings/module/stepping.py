"""`SteppingTables`: how gradients of lookups become steps, at once or together, and where they must not.

By default the backward pass of a lookup takes the step. With `accumulate` it only collects, and `step()`
takes one for all that was collected.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.embeddings.check import Indices
from megalith.embeddings.module.collected_gradients import CollectedGradients, LookupGradients, scale_
from megalith.embeddings.module.gradient_norm import GradientNorms
from megalith.embeddings.module.loss_scale import LossScale, are_finite, own_copy, unscaled
from megalith.embeddings.module.refusals import refuse_averages, refuse_copies_on_ranks
from megalith.embeddings.module.table_module import TableModule
from megalith.embeddings.stores.choose import is_adaptive, is_behind_cache
from megalith.embeddings.stores.dynamic.settings import inner_spec
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.embeddings.stores.table_stores import TableStores
from megalith.ops.embedding.descriptors import OutputGradients


class SteppingTables(TableModule):
    """Tables of this process that take a step of their optimizers from gradients of what was looked up."""

    tables: tuple[TableSpec, ...]
    stores: TableStores

    def __init__(
        self, output_dtype: torch.dtype, device: torch.device | str, *, accumulate: bool, independent: bool
    ) -> None:
        super().__init__(output_dtype, device)
        self.accumulate, self.independent = accumulate, independent
        self.loss_scale: LossScale = None
        """What losses are multiplied by: a number, or a `torch.amp.GradScaler`. Gradients are divided by it,
        and a step with one that is not finite is skipped. None: neither."""
        self.num_skipped_steps = 0
        """Steps that were skipped because a gradient was not finite."""
        self._copied: tuple[int, int] | None = None
        self._norms: GradientNorms | None = None

    @abstractmethod
    def update(
        self, resolved: ResolvedIds, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        """One optimizer step on the touched rows."""

    def take_gradients(
        self, resolved: ResolvedIds, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        """The backward pass of a lookup: takes the step, or keeps the gradients for one."""
        if self.loss_scale is None and not self.accumulate:
            self.update(resolved, pooled, sequences)
            resolved.release()
            return
        if self.loss_scale is None:
            gradients = own_copy(pooled, sequences)
        else:
            gradients = unscaled(self.loss_scale, pooled, sequences)
        if not self.accumulate:
            self._step(resolved, gradients)
            return
        self._drop_zeroed()
        self._collected.add(resolved, gradients)
        if self.anchor.grad is None:
            # Whoever sets it back to None, as zero_grad() of a model or an optimizer does, drops them.
            self.anchor.grad = torch.zeros_like(self.anchor)

    def step(self) -> bool:
        """One step with all gradients since the last one; whether it was taken.

        It is not where there are none, or where one is not finite and there is a `loss_scale`.
        """
        if not self.accumulate:
            raise ConfigError(
                "This collection takes its steps in backward(); make it with accumulate=True to call step()."
            )
        whole = self._whole()
        if whole is None:
            return False
        taken = self._step(whole.resolved, whole.gradients)
        self._clear()
        return taken

    def gradient_norm(self) -> Tensor:
        """The norm of the gradients that wait for `step()`, each row's summed up over all lookups."""
        if self.stores.pools:
            raise ConfigError(
                "Rows of adaptive tables have only some of their columns, so their gradients have no norm to "
                "clip by; leave the collection out, or set max_gradient of its optimizer."
            )
        whole = self._whole()
        if whole is None:
            return torch.zeros(())
        if self._norms is None:
            self._norms = GradientNorms(
                [own.weight for own in self.stores.rows], self.stores.lookups.descriptors
            )
        return self._norms(whole.resolved.batch, whole.gradients)

    def scale_gradients_(self, factor: float) -> None:
        """Multiplies the gradients that wait for `step()`."""
        whole = self._whole()
        if whole is not None:
            scale_(whole.gradients, factor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that wait for `step()`."""
        super().zero_grad(set_to_none)
        self._clear()

    @property
    def has_gradients(self) -> bool:
        """Whether gradients wait for `step()`."""
        self._drop_zeroed()
        return len(self._collected) > 0

    def check_training(self) -> None:
        """Refuses a lookup whose step would be wrong where it is taken."""
        self.check_recomputed(counts_ids=bool(self.stores.dynamic) or self.stores.budget is not None)
        if not self.independent and self.steps_in_backward:
            refuse_copies_on_ranks()

    def note_copied(self) -> None:
        """Says that these tables are now a copy, which nobody has written since."""
        self._copied = self.anchor._version, self.num_steps

    def check_copy(self) -> None:
        """Refuses to look up in a copy whose parameters were averaged while its tables stayed."""
        if self._copied is None or self.anchor.grad is not None:
            return
        version, num_steps = self._copied
        if self.num_steps == num_steps and self.anchor._version != version:
            refuse_averages()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self._copied is not None:
            self.note_copied()
        return self

    @property
    def _collected(self) -> CollectedGradients:
        collected: CollectedGradients | None = self.__dict__.get("_gradients")
        if collected is None:
            collected = self.__dict__["_gradients"] = CollectedGradients(self.stores.lookups)
        return collected

    def _whole(self) -> LookupGradients | None:
        self._drop_zeroed()
        return self._collected.whole(self._resolved_again)

    def _resolved_again(self, indices: Indices) -> ResolvedIds:
        """All lookups of a step at once. Ids of dynamic tables were counted when each was looked up."""
        if self.stores.dynamic:
            for table in self.tables:
                if is_behind_cache(inner_spec(table)) or is_adaptive(table):
                    kind = "adaptive" if is_adaptive(table) else "tiered"
                    raise ConfigError(
                        f"Table '{table.name}' is {kind}, and gradients of several lookups beside dynamic "
                        "tables need rows that are whole in memory; take a step for each lookup."
                    )
        return self.stores.resolve(indices, trains=not self.stores.dynamic)

    def _step(self, resolved: ResolvedIds, gradients: OutputGradients) -> bool:
        is_taken = self.loss_scale is None or are_finite(gradients)
        if is_taken:
            self.update(resolved, *gradients)
        else:
            self.num_skipped_steps += 1
        resolved.release()
        return is_taken

    def _drop_zeroed(self) -> None:
        if len(self._collected) and self.anchor.grad is None:
            self._collected.clear()

    def _clear(self) -> None:
        self._collected.clear()
        self.anchor.grad = None
