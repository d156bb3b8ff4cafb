"""Between a state dictionary and the files of a checkpoint: torch.distributed.checkpoint, called by all ranks
of a group, with its errors turned into sentences."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from megalith.checkpoint.chunks import CHUNK_BYTES, ChunkedSavePlanner
from megalith.core.errors import CheckpointError, MegalithError, StorageError, storage_errors
from megalith.sharding.runtime.ranks import Ranks
from megalith.sharding.runtime.sharded_table import ShardedTable


def save_into(
    state: dict[str, Any], folder: Path, target: Path, ranks: Ranks, chunk_bytes: int = CHUNK_BYTES
) -> None:
    """Writes `state` into `folder`, which will be named `target`. What every rank has is written by the
    first, so only there it has to be right."""
    planner = ChunkedSavePlanner(chunk_bytes)
    _expect_one_process(ranks)
    try:
        dcp.save(
            state,
            checkpoint_id=folder,
            planner=planner,
            process_group=ranks.group,
            no_dist=ranks.world_size == 1,
        )
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if isinstance(cause, MegalithError):
            raise cause from error
        with storage_errors(target):
            if isinstance(cause, OSError):
                raise cause from error
        raise StorageError(
            f"{target} could not be written ({_reason(cause)}); free space there or choose another folder."
        ) from error


def load_into(state: dict[str, Any], folder: Path, ranks: Ranks) -> None:
    """Fills `state` in place; tensors that were cut for other ranks are put together."""
    _expect_one_process(ranks)
    try:
        dcp.load(state, checkpoint_id=folder, process_group=ranks.group, no_dist=ranks.world_size == 1)
    except (CheckpointException, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder} was saved by another model ({_reason(error)}); load it with the recipe that made it."
        ) from error


def snapshot(state: Any) -> Any:
    """A copy that later training does not change; of cut tables only what this rank writes."""
    if isinstance(state, dict):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, ShardedTable):
        return state.snapshot()
    return state.detach().clone() if isinstance(state, torch.Tensor) else state


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """The files that a rank wrote; the first wrote what describes the whole, too."""
    names = [f"__{rank}_*", ".metadata"] if rank == 0 else [f"__{rank}_*"]
    return sorted(path for name in names for path in folder.glob(name))


def fingerprint(path: Path) -> dict[str, int]:
    """Size and checksum of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return {"bytes": path.stat().st_size, "crc32": checksum}


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]


def _expect_one_process(ranks: Ranks) -> None:
    if ranks.world_size == 1:
        # We do mean one process; torch warns that it assumes so. The filter stays: taking it back is not
        # safe while another thread saves.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
