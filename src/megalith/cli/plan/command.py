"""`megalith plan`: where each table of a recipe goes on a cluster, and what a step of it will take."""

from __future__ import annotations

import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megalith.cli.output import JsonFlag, print_json, say
from megalith.cli.plan.feeding import FedPlan, FeedingOptions, feed, show_feeding
from megalith.cli.plan.inputs import PlanRequest
from megalith.cli.plan.one_worker import with_one_worker

if TYPE_CHECKING:
    from megalith.sharding.plan import ShardingPlan
    from megalith.sharding.planner.types import PlanInputs


class Algorithm(StrEnum):
    """What looks for a plan."""

    best = "best"
    greedy = "greedy"
    karmarkar_karp = "karmarkar_karp"
    mip = "mip"


def plan(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or .yaml path, or a run's folder.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as model.dim=64."),
    ] = None,
    hardware: Annotated[
        str,
        typer.Option(
            help="A cluster of the catalog, a YAML file such as `explore catalog --probe` writes, or local: "
            "machines like this one, as training plans for."
        ),
    ] = "zionex",
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Workers [default: all of the cluster].")
    ] = None,
    workers_per_node: Annotated[
        int | None, typer.Option(min=1, help="Workers that share a node [default: the cluster's].")
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples of a step [default: the recipe's, or a file's on every worker]."),
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(help="Plan tables of a YAML file, or neo-a, neo-f, neo-i, instead of a recipe's."),
    ] = None,
    algorithm: Annotated[Algorithm, typer.Option(help="How to look for a plan.")] = Algorithm.best,
    local_search: Annotated[bool, typer.Option(help="Improve what the algorithm found.")] = True,
    pipelined: Annotated[
        bool, typer.Option("--pipelined", help="The next batch's ids travel while this one is computed.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Look no longer than this [default: 9 for --tables; for a recipe a number of steps, so that "
            "the plan is that of training].",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run a step of all workers in this process, without their tables: follow each id of a batch "
            "(the recipe's data, or drawn for --tables) to its row and back, check memory and balance.",
        ),
    ] = False,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="With --dry-run: check this plan instead of making one.")
    ] = None,
    readers: Annotated[
        str, typer.Option(help="The hosts that read: a cluster of processors, by name or YAML file.")
    ] = "cpu-servers",
    raw: Annotated[
        bool, typer.Option("--raw", help="Readers take raw files instead of prepared ones.")
    ] = False,
    samples_per_second: Annotated[
        float | None,
        typer.Option(min=1, help="The rate that readers are to feed [default: that of the predicted step]."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with an asynchronous parameter-server system on this cluster of processors, such "
            "as cpu-servers."
        ),
    ] = None,
    trainers: Annotated[
        int | None, typer.Option(min=1, help="With --against: its trainers [default: several numbers].")
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --against: its servers [default: as many as hold the tables and keep up]."
        ),
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Place every embedding table on the workers of a cluster; with --dry-run, check that it would work."""
    from megalith.core.errors import ConfigError
    from megalith.core.files import check_target
    from megalith.sharding.plan import read_plan
    from megalith.sharding.planner import Planner

    if plan_file is not None and not dry_run:
        raise ConfigError("--plan names a plan to check; add --dry-run.")
    if out is not None:
        check_target(out)
    if against is None and (trainers is not None or servers is not None):
        raise ConfigError("--trainers and --servers are of the system that --against names; add it.")
    options = FeedingOptions(readers, raw, samples_per_second, against, trainers, servers)
    request = PlanRequest(
        recipe, overrides or [], tables, hardware, world_size, workers_per_node, global_batch, pipelined
    )
    given = read_plan(plan_file) if plan_file is not None else None
    if given is not None:
        per_node = min(given.workers_per_node, given.world_size)
        request = replace(request, world_size=given.world_size, workers_per_node=per_node)
    inputs = request.inputs()
    made = given or Planner(request.search(inputs, algorithm.value, local_search, seconds)).plan(inputs)
    if given is None:
        made = with_one_worker(made, request, inputs, algorithm.value, local_search, seconds)
    if out is not None:
        made.write(out)
    if dry_run:
        _check(made, inputs, request, json_output)
        return
    fed = None if made.estimate is None else feed(made, inputs, request, options)
    if json_output:
        _print(made, inputs, fed)
    else:
        _show(made, inputs, fed, out)


def _check(made: ShardingPlan, inputs: PlanInputs, request: PlanRequest, json_output: bool) -> None:
    """Runs a step of all workers in this process."""
    from megalith.cli.plan.dry_run import first_batch, show_dry_run
    from megalith.sharding.validate.dry_run import dry_run

    workload, batch = inputs.workload, None
    if request.recipe is not None and request.tables is None:
        batch = first_batch(request.recipe, request.overrides, min(workload.global_batch, 4096))
    checked = dry_run(
        inputs.tables,
        made,
        request.cluster(),
        global_batch=workload.global_batch,
        statistics=inputs.statistics,
        optimizer=workload.optimizer,
        batch=batch,
        adaptive_share=inputs.adaptive_share,
    )
    if json_output:
        print_json(checked.to_dict())
    else:
        show_dry_run(checked)


def _print(made: ShardingPlan, inputs: PlanInputs, fed: FedPlan | None) -> None:
    shown = {**made.model_dump(mode="json"), "global_batch": inputs.workload.global_batch}
    if made.estimate is not None:
        shown["step_parts_seconds"] = made.estimate.step_parts()
        shown["one_worker_suffices"] = made.estimate.one_worker_suffices
    if fed is not None:
        shown |= fed.to_dict()
    print_json(shown)


def _show(made: ShardingPlan, inputs: PlanInputs, fed: FedPlan | None, out: Path | None) -> None:
    from megalith.cli.plan.tables import show_plan

    if made.estimate is not None:
        show_plan(made, made.estimate, inputs.workload.global_batch)
    if fed is not None:
        show_feeding(fed)
    if out is not None:
        say(f"Wrote {out}; `megalith report {shlex.quote(str(out))}` draws it.")
