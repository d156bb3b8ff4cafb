"""The commands of `megalith explore`: each loads a job, asks `megalith.explore`, and prints the answer.

Whatever a command needs is imported when it runs, so that `--help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megalith.cli.explore.options import Hardware, JobArgument, Overrides, ReportOption, TraceOption
from megalith.cli.output import JsonFlag, note, print_json, say, working

if TYPE_CHECKING:
    from megalith.explore.job import Job


def predict(
    job: JobArgument,
    overrides: Overrides = None,
    trace: TraceOption = None,
    report: ReportOption = None,
    hardware: Hardware = None,
    as_json: JsonFlag = False,
) -> None:
    """The step of a plan, what bounds it, and how sure."""
    from megalith.cli.explore.tables.prediction import show_prediction
    from megalith.explore.load import resolve_cluster, resolve_sites
    from megalith.explore.predict import predict as predict_step

    asked = _load(job, overrides, hardware)
    prediction = predict_step(asked, record=trace is not None or report is not None)
    sites = resolve_sites(asked)
    cluster = sites.largest() if sites else resolve_cluster(asked.cluster, asked.hardware)
    if trace is not None:
        from megalith.cli.explore.plan_files import write_trace

        write_trace(prediction, trace)
    if report is not None:
        from megalith.report import write_prediction_report

        write_prediction_report(asked, cluster, prediction, report)
    if as_json:
        print_json(prediction.to_dict())
        return
    show_prediction(asked, cluster, prediction)
    _wrote(trace, report)


def search(
    job: JobArgument,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the best plans: job, Megatron-LM and torchtitan files, traces, report."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    report: ReportOption = None,
    hardware: Hardware = None,
    as_json: JsonFlag = False,
) -> None:
    """The best plans for a model on a cluster, and why."""
    from megalith.cli.explore.plan_files import check_folder, write_plans
    from megalith.cli.explore.tables.search import show_search
    from megalith.core.files import check_target
    from megalith.explore.load import resolve_cluster
    from megalith.explore.predict import predict as predict_step
    from megalith.explore.search import search as search_plans

    asked = _load(job, overrides, hardware)
    if out is not None:
        check_folder(out, overwrite)
    if report is not None:
        check_target(report)
    with working(f"Searching for {asked.name or 'the job'}") as update:
        result = search_plans(asked, progress=update)
    cluster = resolve_cluster(result.best.job.cluster, asked.hardware)
    if out is not None:
        write_plans(asked, cluster, result, out, overwrite)
    if report is not None:
        from megalith.report import write_search_report

        best = predict_step(result.best.job, record=True)
        write_search_report(asked, cluster, result, best, report)
    if as_json:
        print_json(result.to_dict())
        return
    show_search(cluster, result)
    _wrote(out, report)


def compare(
    job: JobArgument,
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Another job; or name a cluster.")
    ] = None,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option(help="Compare JOB with itself on this cluster of the catalog.")
    ] = None,
    hardware: Hardware = None,
    as_json: JsonFlag = False,
) -> None:
    """Two plans or clusters: what differs, what it costs."""
    from megalith.cli.explore.tables.comparison import show_comparison
    from megalith.core.errors import ConfigError
    from megalith.explore.compare import compare as compare_jobs

    settings = list(overrides or ())
    if cluster is not None and other is not None:
        # With --cluster the second word can only be a setting.
        settings.insert(0, other)
        other = None
    if (other is None) == (cluster is None):
        raise ConfigError("explore compare: name a second job, or a cluster with --cluster.")
    first = _load(job, settings, hardware)
    second = _load(other or job, [*settings, *([f"cluster={cluster}"] if cluster else [])], hardware)
    with working("Comparing") as update:
        comparison = compare_jobs(first, second, progress=update)
    if as_json:
        print_json(comparison.to_dict())
        return
    show_comparison(comparison)


def validate(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Steps of your own: CSV with a column for each setting of a job, or JSONL with whole jobs."
        ),
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="Predict them all with this stack: a name, or a YAML file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """How accurate it is: measured steps, replayed."""
    from megalith.cli.explore.tables.validation import show_validation
    from megalith.explore.validation import validate as replay

    with working("Replaying measured steps"):
        validation = replay(file, stack)
    if as_json:
        print_json(validation.to_dict())
        return
    show_validation(validation)


def calibrate(
    file: Annotated[
        Path, typer.Argument(help="Steps of your own, as for `validate`: CSV or JSONL, three or more.")
    ],
    out: Annotated[Path, typer.Option(help="The profile to write, such as my-stack.yaml.")],
    base: Annotated[
        str | None, typer.Option(help="Stack to begin with [default: the one that most steps name].")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the profile.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """A stack fitted to your own runs, models held out."""
    from megalith.cli.explore.tables.calibration import show_calibration
    from megalith.core.config import to_yaml
    from megalith.core.errors import ConfigError
    from megalith.core.files import check_target, write_atomic
    from megalith.explore.calibrate import calibrate as fit_profile

    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: a profile is a YAML file; take {out.with_suffix('.yaml')}.")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; add --overwrite to replace it, or take another name.")
    check_target(out)
    with working("Fitting the stack to the steps"):
        profile, report = fit_profile(file, out.stem, base)
    write_atomic(out, to_yaml(profile))
    if as_json:
        print_json({**report.to_dict(), "out": str(out)})
        return
    show_calibration(report)
    _wrote(out)


def scenarios(
    names: Annotated[list[str] | None, typer.Argument(help="Some of the suite [default: all].")] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Also what placement, schedule and network bring alone.")
    ] = False,
    routing: Annotated[
        str | None,
        typer.Option(
            help="ecmp, spray or adaptive for all three [default: the search chooses, others ECMP]."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Best plans beside production and CrossPipe."""
    from megalith.cli.explore.tables.scenarios import show_scenarios
    from megalith.explore.scenarios import ablation as parts_of
    from megalith.explore.scenarios import check_routing, run_scenario, scenario_jobs

    chosen = check_routing(routing)
    jobs = list(scenario_jobs(names))
    rows, parts = [], {}
    with working("Scenarios") as update:
        for number, job in enumerate(jobs, start=1):
            update(f"{number} of {len(jobs)}: {job.name}")
            row = run_scenario(job, routing=chosen)
            rows.append(row)
            if ablation:
                parts[job.name] = parts_of(job)
            gain = row.over_production
            shown = "" if gain is None else f", {gain:+.1%} over production"
            note((f"{job.name}: {row.best.prediction.step_seconds:.4g} s{shown}", "dim"))
    if as_json:
        print_json({"scenarios": [row.to_dict() for row in rows], "ablation": parts})
        return
    show_scenarios(rows, parts)


def catalog(
    hardware: Hardware = None,
    probe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measure this machine, write it as such a file, and list it too."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Names that jobs may use: models, devices, links, ..."""
    from megalith.cli.explore.tables.catalog import catalog_content, show_catalog

    files = tuple(hardware or ())
    if probe is not None:
        from megalith.core.files import check_target
        from megalith.hardware.probe import probe as measure

        check_target(probe)
        measure().write(probe)
        files = (*files, probe)
    content = catalog_content(files)
    if as_json:
        print_json(content)
        return
    show_catalog(content)


def _load(job: str, overrides: list[str] | None, hardware: list[Path] | None) -> Job:
    from megalith.explore.load import load_job

    return load_job(job, overrides or (), hardware or ())


def _wrote(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            say(f"Wrote {path}.")
