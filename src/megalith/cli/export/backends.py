"""`megalith export DIR --tune` and `--check BACKEND`: frozen models on this machine's backends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from megalith.cli.output import note, print_table, say, working
from megalith.core.errors import ConfigError, ServeError

if TYPE_CHECKING:
    from megalith.export.backends.conformance.findings import Finding
    from megalith.export.backends.tune import Candidate, Tuning


class TuneOptions:
    """Sizes of batches and numbers of threads, from their text."""

    def __init__(self, batches: str, threads: str | None) -> None:
        self.batches = _numbers("--batches", batches)
        self.threads = None if threads is None else _numbers("--threads", threads)


def tune_folder(folder: Path, options: TuneOptions, json_output: bool) -> dict[str, Any]:
    """Measures the backends on a frozen model, keeps the best in its manifest and, without JSON, prints the
    table."""
    from megalith.export.backends.tune import tune
    from megalith.export.backends.tuned import keep_tuning
    from megalith.export.folder import FrozenModel

    model = FrozenModel(folder)
    with working("tuning") as says:
        found = tune(
            model,
            batches=options.batches,
            threads=options.threads,
            says=lambda line: says(f"tuning: {line}"),
        )
    keep_tuning(folder, found)
    best = found.best
    content: dict[str, Any] = {"backend": best.choice, "threads": best.threads}
    content["candidates"] = [each.to_dict() for each in found.candidates]
    if not json_output:
        print_tuning(found)
        say(f"{folder} now runs on {best.choice} with {_counted(best.threads, 'thread')}.")
    return content


def print_tuning(found: Tuning) -> None:
    """The table of candidates, the best first, and why some were left out."""
    measured = [each for each in found.candidates if each.timings]
    batches = sorted({batch for each in measured for batch in each.timings})
    best = found.best
    rows = [
        [
            f"{'* ' if each is best else ''}{each.choice}",
            each.threads,
            *(_milliseconds(each, batch) for batch in batches),
            f"{each.seconds / best.seconds:.2f}x",
        ]
        for each in measured
    ]
    columns = [
        "backend",
        "threads",
        *(f"{_counted(batch, 'sample')}, ms" for batch in batches),
        "of the best",
    ]
    print_table("Median time of a request, and its spread over rounds", columns, rows)
    for sentence in dict.fromkeys(
        f"{each.choice}: {each.problem}" for each in found.candidates if each.problem
    ):
        note(f"Left out: {sentence}")


def check_folder(
    folder: Path, choice: str, options: TuneOptions, json_output: bool
) -> tuple[dict[str, Any], ServeError | None]:
    """Runs the conformance suite of a backend on a frozen model: what was found, and what to end with."""
    from megalith.export.backends.choice import parse_choice
    from megalith.export.backends.conformance import check_backend
    from megalith.export.backends.registry import find_backend
    from megalith.export.folder import FrozenModel

    chosen = parse_choice(choice)
    model = FrozenModel(folder)
    findings: list[Finding] = []
    for each in (chosen.lookups, chosen.dense):
        if each is not None:
            with working(f"Checking {each}"):
                backend = find_backend(each.name)
                findings += check_backend(
                    backend,
                    model,
                    each.options,
                    threads=max(options.threads or (1,)),
                    largest_batch=max(options.batches),
                )
    failed = [finding for finding in findings if finding.result == "failed"]
    content = {"backend": choice, "failed": len(failed), "checks": [each.to_dict() for each in findings]}
    if not json_output:
        columns = ["check", "part", "result", "asked", "wanted", "got"]
        print_table(
            f"Backend {choice} on {folder}",
            columns,
            [[each.check, each.part, each.result, each.asked, each.wanted, each.got] for each in findings],
        )
    if not failed:
        return content, None
    first = failed[0]
    return content, ServeError(
        f"Backend '{choice}' fails {len(failed)} of {len(findings)} checks, the first is '{first.check}' of "
        f"{first.part}; the table above says what each wanted and got."
    )


def _milliseconds(candidate: Candidate, batch: int) -> str:
    timing = candidate.timings[batch]
    return f"{timing.median * 1e3:.3g} ± {timing.spread / 2:.0%}"


def _numbers(option: str, text: str) -> tuple[int, ...]:
    found = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if min(found) < 1:
        raise ConfigError(f"{option} is '{text}'; write numbers of 1 or more, such as 1,32,256.")
    return found


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
