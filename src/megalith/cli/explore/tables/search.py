"""What `megalith explore search` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.explore.tables.prediction import job_title, print_facts
from megalith.cli.output import print_table, say
from megalith.core.units import format_bytes, format_count, format_duration
from megalith.explore.plan_text import bound_name, plan_summary, sensitivity_name
from megalith.hardware.cluster import Cluster

if TYPE_CHECKING:
    from megalith.explore.search.result import SearchResult

_PARETO_ROWS = 10


def show_search(cluster: Cluster, result: SearchResult) -> None:
    """The best plans, why they are, and what is known of the others."""
    best = result.best.prediction
    low, high = best.interval
    sure = f"80% interval {format_duration(low)} to {format_duration(high)}"
    close = sum(
        plan.prediction.step_seconds <= best.step_seconds * (1 + best.plan_error) for plan in result.top[1:]
    )
    real = f"plans that differ by less than {best.plan_error:.1%} are not told apart"
    if close:
        real += f": {close} of those below"
    gap = "none: proved to be the best" if result.exact else f"at most {result.gap:.1%}"
    print_facts(
        job_title(result.best.job, cluster),
        [
            ["how sure", sure],
            ["known from", best.interval_basis],
            ["between plans", real],
            ["stack", best.stack],
            ["best step", format_duration(best.step_seconds)],
            ["lower bound", format_duration(result.lower_bound_seconds)],
            ["left to gain", gap],
            [
                "plans",
                f"{result.examined:,} simulated, {format_count(result.pruned)} ruled out, "
                f"{format_count(result.unexamined)} left, in {result.seconds:.1f} s",
            ],
        ],
    )
    rows = []
    for rank, plan in enumerate(result.top, start=1):
        prediction = plan.prediction
        slower = prediction.step_seconds / best.step_seconds - 1
        rows.append(
            [
                rank,
                format_duration(prediction.step_seconds),
                f"{slower:+.1%}" if rank > 1 else "",
                f"{prediction.mfu:.1%}",
                format_bytes(prediction.memory_bytes_per_device),
                format_bytes(plan.cross_site_bytes),
                bound_name(prediction.bound_by),
            ]
        )
    print_table("The best plans", ["", "step", "slower", "MFU", "memory", "across sites", "bound by"], rows)
    for rank, plan in enumerate(result.top, start=1):
        changed = " It changes the mathematics of training." if plan.changes_mathematics else ""
        say((str(rank), "bold"), f" {plan_summary(plan.job)} ", (f"({plan.provenance})", "dim"), changed)
    say()
    for sentence in result.explanation:
        say(f"- {sentence}")
    say()
    if result.sensitivities:
        print_table(
            "What a better part would bring",
            ["had one", "saved", "step"],
            [
                [sensitivity_name(part), f"{100 * part.gain:.1f}%", format_duration(part.step_seconds)]
                for part in sorted(result.sensitivities, key=lambda part: -part.gain)
            ],
        )
    _pareto(result)


def _pareto(result: SearchResult) -> None:
    """A table of the Pareto front."""
    shown = list(result.pareto)
    # An even pick, both ends included: the front may have hundreds of plans.
    if len(shown) > _PARETO_ROWS:
        shown = [shown[round(at * (len(shown) - 1) / (_PARETO_ROWS - 1))] for at in range(_PARETO_ROWS)]
    picked = "" if len(shown) == len(result.pareto) else f" ({len(shown)} of {len(result.pareto)} plans)"
    print_table(
        f"Pareto front{picked}",
        ["step", "memory", "across sites", "cost", "plan"],
        [
            [
                format_duration(plan.prediction.step_seconds),
                format_bytes(plan.prediction.memory_bytes_per_device),
                format_bytes(plan.cross_site_bytes),
                f"{plan.cost_per_step:.3g}",
                plan_summary(plan.job).split(";")[0],
            ]
            for plan in shown
        ],
    )
