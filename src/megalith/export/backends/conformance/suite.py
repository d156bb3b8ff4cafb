"""The suite: every check on every part that a backend runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from megalith.core.errors import MegalithError, without_controls
from megalith.export.backends.base import Backend, LoadSettings, ModelSource, Part
from megalith.export.backends.choice import parse_choice
from megalith.export.backends.conformance import exact, lifecycle, refusals, results
from megalith.export.backends.conformance.findings import Finding, Result, Verdict
from megalith.export.backends.conformance.models import probe_models
from megalith.export.backends.conformance.probe import PartProbe
from megalith.export.backends.registry import find_backend

Check = Callable[[PartProbe], Verdict]

CHECKS: Mapping[str, Check] = {
    "recorded outputs": results.recorded_outputs,
    "empty batch": results.empty_batch,
    "one sample": results.one_sample,
    "odd batches": results.odd_batches,
    "largest batch": results.largest_batch,
    "empty bags": results.empty_bags,
    "repeated ids": results.repeated_ids,
    "ids of 32 bits": results.narrow_ids,
    "user once": results.user_once,
    "half vectors": results.half_vectors,
    "batch mates": results.batch_mates,
    "same every time": results.same_every_time,
    "promised bits": exact.promised_bits,
    "ids out of range": refusals.ids_out_of_range,
    "not finite": refusals.numbers_not_finite,
    "large numbers": refusals.large_numbers,
    "malformed": refusals.malformed,
    "unknown options": refusals.unknown_options,
    "health after errors": refusals.health_after_errors,
    "several at once": lifecycle.instances_at_once,
    "inputs stay": lifecycle.inputs_stay,
    "statistics": lifecycle.statistics_count,
    "bytes": lifecycle.bytes_are_true,
    "close": lifecycle.close_refuses,
    "close releases": lifecycle.close_releases,
}


def check_backend(
    backend: Backend,
    model: ModelSource,
    options: Mapping[str, str] | None = None,
    *,
    threads: int = 1,
    largest_batch: int = 1024,
    checks: Collection[str] = tuple(CHECKS),
) -> list[Finding]:
    """What the suite, or some of its checks, find of a backend on a model, part by part."""
    findings = []
    settings = LoadSettings(threads=threads, options=dict(options or {}))
    for part in backend.parts:
        findings += _check_part(backend, model, part, settings, largest_batch, checks)
    return findings


def conforms(
    backend: Backend | str, models: Iterable[ModelSource] | None = None, *, threads: int = 1
) -> list[Finding]:
    """Raises AssertionError with every failed check of a backend, on small models that hold every operation
    and every kind of table; returns all findings. For an author's own tests. A backend may be given by name,
    with options as `--backend` has them."""
    options: Mapping[str, str] = {}
    named = backend if isinstance(backend, str) else backend.name
    if isinstance(backend, str):
        chosen = parse_choice(backend).lookups
        backend, options = find_backend(chosen.name), chosen.options
    findings: list[Finding] = []
    for model in probe_models() if models is None else models:
        findings += check_backend(backend, model, options, threads=threads, largest_batch=130)
    failed = [str(finding) for finding in findings if finding.result == "failed"]
    if not any(finding.result == "passed" for finding in findings):
        failed += [str(finding) for finding in findings]
    if failed:
        raise AssertionError(f"Backend '{named}' fails {len(failed)} checks:\n" + "\n".join(failed))
    return findings


def _check_part(
    backend: Backend,
    model: ModelSource,
    part: Part,
    settings: LoadSettings,
    largest_batch: int,
    checks: Collection[str],
) -> list[Finding]:
    name = model.manifest.name
    try:
        probe = PartProbe(model, backend, part, settings, largest_batch)
    except MegalithError as error:
        # It may refuse what it cannot run, such as a kind of table, in a sentence.
        return [Finding("load", name, part, "skipped", "to load it", "a part, or a sentence", str(error))]
    except Exception as error:
        said = without_controls(f"{type(error).__name__}: {error}")
        return [Finding("load", name, part, "failed", "to load it", "a part, or a sentence", said)]
    try:
        return [_run(probe, title, check) for title, check in CHECKS.items() if title in checks]
    finally:
        probe.close()


def _run(probe: PartProbe, title: str, check: Check) -> Finding:
    try:
        verdict = check(probe)
    except Exception as error:
        said = without_controls(f"{type(error).__name__}: {error}")
        verdict = Verdict(check.__doc__ or title, "no error", said, False)
    result: Result = "skipped" if verdict.passed is None else "passed" if verdict.passed else "failed"
    name = probe.model.manifest.name
    return Finding(title, name, probe.part, result, verdict.asked, verdict.wanted, verdict.got)
