"""Published bubble rates of pipeline schedules (bubbles.csv), simulated again."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from megalith.explore.cost.step import plan_cost
from megalith.explore.job import ClusterSpec, Job, LevelSpec, Parallel, Training, TransformerModel
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.plan import make_plan
from megalith.explore.validation.job_columns import TableRow
from megalith.explore.validation.report import ValidationBubble


def replay_bubble(row: TableRow) -> ValidationBubble:
    """One row of bubbles.csv: pipeline only, first and last stage one layer fewer than the others.

    The paper's rate is of a schedule simulated with the mean seconds of a stage and of a message, as
    profiled: cost less m (F + B + W), over cost.
    """
    schedule_name = row["schedule"]
    job = _bubble_job(row)
    parallel = job.parallel
    assert parallel is not None
    plan = make_plan(job, parallel.micro_batch or 1, "none")
    schedule = build_schedule(schedule_name, parallel.pp, plan.micro_batches, parallel.vpp)
    costs = plan_cost(plan, schedule).costs
    even = replace(
        costs,
        forward=_averaged(costs.forward),
        backward_input=_averaged(costs.backward_input),
        backward_weight=_averaged(costs.backward_weight),
        optimizer_seconds=(),
    )
    rate = simulate(schedule, even).bubble_rate
    return ValidationBubble(row["model"], schedule_name, float(row["bubble_rate"]), rate)


def _averaged(seconds: tuple[float, ...]) -> tuple[float, ...]:
    """Every stage with the mean of all."""
    return (mean(seconds),) * len(seconds)


def _bubble_job(row: TableRow) -> Job:
    pp, layers, schedule = int(row["p"]), int(row["layers"]), row["schedule"]
    each = (layers + 2) // pp
    # The paper interleaves single layers: as many chunks as a stage has layers.
    vpp = each if schedule == "interleaved" else 1
    stages = [each // vpp] * (pp * vpp)
    stages[0] -= 1
    stages[-1] -= 1
    micro_batch = int(row["micro_batch"])
    levels = (
        LevelSpec(name="node", count=8, link="nvlink3"),
        LevelSpec(name="zone", count=max(1, pp // 8), link="roce-200x8"),
    )
    return Job(
        model=TransformerModel(
            hidden=int(row["hidden"]),
            layers=layers,
            heads=int(row["heads"]),
            vocab=51200,
            seq=int(row["seq"]),
        ),
        cluster=ClusterSpec(device="a100-80g", levels=levels),
        parallel=Parallel(
            pp=pp,
            vpp=vpp,
            micro_batch=micro_batch,
            global_batch=micro_batch * int(row["m"]),
            layers_per_stage=tuple(stages),
        ),
        training=Training.model_validate({"precision": "bf16", "schedule": schedule, "overlap": True}),
    )
