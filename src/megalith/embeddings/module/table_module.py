"""`TableModule`: tables as a module of torch, whose rows are neither parameters nor buffers.

Rows are written by kernels in the backward pass, so torch is not given their tensors: no optimizer, cast,
broadcast or average of weights can reach them halfway. What it gets is `anchor`, a parameter without an
element. It wants a gradient while the tables train, so every way of freezing a model freezes them too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError
from megalith.embeddings.module.refusals import is_in_backward, refuse_changed_rows, refuse_repeated_ids
from megalith.ops.tensors import STORED_DTYPES

_ANCHOR = "anchor"


class TableModule(nn.Module):
    """A module of tables; what `.to()`, `.half()`, freezing and state dictionaries mean for them."""

    output_dtype: torch.dtype
    """That of vectors; `.half()` and the like change it, and never what is stored."""
    num_steps: int

    def __init__(self, output_dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.output_dtype = output_dtype
        self._steps_at_lookup = 0
        with torch.inference_mode(False):
            self.anchor = nn.Parameter(torch.empty(0, dtype=output_dtype, device=device))
        """Stands for the tables among the parameters of a model."""

    @property
    def is_frozen(self) -> bool:
        """Whether `requires_grad_(False)` was called on it, or on a model around it."""
        return not self.anchor.requires_grad

    @property
    def steps_in_backward(self) -> bool:
        """Whether what is looked up now will train the tables."""
        return self.training and torch.is_grad_enabled() and self.anchor.requires_grad

    def check_recomputed(self, *, counts_ids: bool) -> None:
        """Refuses a lookup that gradient checkpointing repeats in a backward pass, where it would not read
        what was read before, or where stores count ids by their uses."""
        if not is_in_backward():
            # Also without gradients: so gradient checkpointing may look up first.
            self._steps_at_lookup = self.num_steps
        elif self.steps_in_backward:
            if counts_ids:
                refuse_repeated_ids()
            if self.num_steps != self._steps_at_lookup:
                refuse_changed_rows()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Casts vectors, not rows; refuses what would have to move the tables."""
        probe = fn(torch.empty(1, dtype=self.output_dtype, device=self.anchor.device))
        name = type(self).__name__
        if probe.device != self.anchor.device:
            raise ConfigError(
                f"The tables of this {name} stay on {self.anchor.device.type}, where they were made; move "
                f"the other modules to {probe.device.type} one by one."
            )
        if probe.device.type == "cpu" and probe.is_shared():
            raise ConfigError(
                f"The tables of this {name} are in the memory of this process alone; train on several "
                "processes with mg.ShardedEmbeddingCollection instead of share_memory()."
            )
        if probe.dtype not in STORED_DTYPES:
            raise ConfigError(
                f"This {name} gives vectors of float32, float16 or bfloat16, not of "
                f"{str(probe.dtype).removeprefix('torch.')}; convert what it returns."
            )
        super()._apply(fn, recurse)
        self.output_dtype = probe.dtype
        return self

    def _replicate_for_data_parallel(self) -> Self:
        raise ConfigError(
            "nn.DataParallel would have several copies of a module update the same tables; train on several "
            "processes with mg.ShardedEmbeddingCollection."
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + _ANCHOR, None)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        with suppress(ValueError):
            missing_keys.remove(prefix + _ANCHOR)
