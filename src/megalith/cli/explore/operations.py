"""`megalith explore goodput` and `share`: what a step becomes in operation."""

from __future__ import annotations

from typing import Annotated

import typer

from megalith.cli.explore.options import Hardware, JobArgument, Overrides
from megalith.cli.output import JsonFlag, print_json, print_table

SIZES = (1024, 4096, 16384, 32768, 65536, 98304)


def goodput(
    job: JobArgument, overrides: Overrides = None, hardware: Hardware = None, as_json: JsonFlag = False
) -> None:
    """The share of the time that a job makes progress: failures, checkpoints, restarts, stragglers."""
    from megalith.core.units import format_duration
    from megalith.explore.load import load_job, resolve_cluster, resolve_sites
    from megalith.explore.operation.goodput import goodput as goodput_of

    asked = load_job(job, overrides or (), hardware or ())
    sites = resolve_sites(asked)
    own = sites.devices if sites else resolve_cluster(asked.cluster, asked.hardware).devices
    rows = [goodput_of(asked, devices) for devices in sorted({own, *SIZES})]
    if as_json:
        print_json({"devices": own, "rows": [row.to_dict() for row in rows]})
        return
    print_table(
        f"{asked.name or asked.model.name or 'The job'}: the share of the time that makes progress",
        ["devices", "a failure in", "checkpoint every", "stops for", "goodput", "lost to"],
        [
            [
                f"{row.devices:,}{' (the job)' if row.devices == own else ''}",
                format_duration(3600 * row.hours_between_failures),
                format_duration(row.interval_seconds),
                format_duration(row.checkpoint_seconds),
                f"{row.share:.1%}",
                ", ".join(f"{cause.replace('_', ' ')} {part:.1%}" for cause, part in row.lost.items()),
            ]
            for row in rows
        ],
    )


def share(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB JOB ...", help="Jobs that share a link.")],
    hardware: Hardware = None,
    as_json: JsonFlag = False,
) -> None:
    """Several jobs on one wide-area link: what each gets of it, and its step."""
    from megalith.core.units import format_duration
    from megalith.explore.load import load_job
    from megalith.explore.operation.link_sharing import predict_shared

    rows = predict_shared([load_job(job, (), hardware or ()) for job in jobs])
    if as_json:
        print_json({"jobs": [row.to_dict() for row in rows]})
        return
    print_table(
        "Jobs on one link",
        ["job", "step alone", "step shared", "slower by", "can use", "sends on average"],
        [
            [
                row.name,
                format_duration(row.alone.step_seconds),
                format_duration(row.shared.step_seconds),
                f"{row.shared.step_seconds / row.alone.step_seconds - 1:.1%}",
                f"{row.gigabits_per_second:.4g} Gb/s",
                f"{row.mean_gigabits_per_second:.4g} Gb/s",
            ]
            for row in rows
        ],
    )
