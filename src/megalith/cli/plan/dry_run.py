"""`megalith plan --dry-run`: all ranks of a plan in one process, without their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_table, say

if TYPE_CHECKING:
    from megalith.sharding.validate.batches import IdBatch
    from megalith.sharding.validate.dry_run import DryRun


def first_batch(recipe: str, overrides: list[str], samples: int) -> IdBatch:
    """Ids of the first samples that the recipe would train on."""
    import torch

    from megalith.data.loader import Loader
    from megalith.train.loaders import open_dataset, raw_rows
    from megalith.train.recipe import load_recipe

    settings = load_recipe(recipe, overrides)
    dataset, splits = open_dataset(settings.data), settings.data.train
    rows = raw_rows(dataset, splits)
    loader = Loader(dataset, splits, samples, shuffle=False, epochs=1, threads=1, rows=rows)
    batch = next(iter(loader))
    return batch.values.to(torch.int64).numpy(), batch.offsets.numpy()


def show_dry_run(checked: DryRun) -> None:
    """Prints what a dry run has found."""
    from statistics import mean

    from megalith.core.units import format_bytes, format_count

    loads = checked.workers
    used = [tier for tier in checked.memory_capacity_bytes if any(load.memory_bytes[tier] for load in loads)]
    rows = []
    for name, pick in (("least", min), ("mean", mean), ("most", max)):
        rows.append(
            [
                name,
                format_count(pick([load.lookups for load in loads])),
                format_bytes(pick([load.sent_bytes for load in loads])),
                format_bytes(pick([load.sent_outside_bytes for load in loads])),
                format_bytes(pick([load.received_bytes for load in loads])),
                *(format_bytes(pick([load.memory_bytes[tier] for load in loads])) for tier in used),
            ]
        )
    balance = checked.balance
    rows.append(
        [
            "most / mean",
            f"{balance['lookups']:.2f}",
            f"{balance['sent_bytes']:.2f}",
            "",
            f"{balance['received_bytes']:.2f}",
            *([f"{balance['memory_bytes']:.2f}"] if len(used) == 1 else [""] * len(used)),
        ]
    )
    columns = ["", "lookups", "sent", "of it to other nodes", "received", *used]
    print_table(f"A step of {checked.world_size:,} workers", columns, rows)
    travels = [[name, format_bytes(size)] for name, size in checked.exchanged_bytes.items() if size]
    print_table("What travels in a step, all workers together", ["", "bytes"], travels)
    capacity = ", ".join(f"{format_bytes(checked.memory_capacity_bytes[tier])} {tier}" for tier in used)
    link = checked.largest_link
    say(
        f"{checked.ids_checked:,} ids of {checked.samples_checked:,} samples each reach every column of "
        f"their row exactly once, and all columns of {checked.num_tables:,} tables come back. Memory fits "
        f"{checked.device} ({capacity}). The fullest pair, {link['from']:.0f} to {link['to']:.0f}, exchanges "
        f"{format_bytes(link['bytes'])} a step. Checked in {checked.seconds:.1f} s."
    )
