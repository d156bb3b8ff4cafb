"""Every `megalith ...` command of README and the guides is one that the program takes, and is run by a test
or listed here with the reason why not."""

from __future__ import annotations

from collections import defaultdict

import pytest

from documented_commands import (
    OPEN,
    ROOT,
    DocumentedCommand,
    documented_commands,
    is_group,
    known_options,
    options_of,
    resolve,
)

COMMANDS = documented_commands()
_LONG = "minutes to hours beside peers that tests do not install; tests/unit/bench runs the suite small"
NOT_RUN = dict.fromkeys(
    ("bench adaptive", "bench data", "bench embedding", "bench serve", "bench tiers", "bench train"), _LONG
)
"""By command, why no test runs it as it is shown. It is parsed, as all are."""
RUN_BY = {
    "demo": "tests/e2e/test_demo_command.py",
    "demo --full": "tests/e2e/test_demo_command.py",
    "doctor": "tests/e2e/test_demo_command.py",
    "explore catalog": "tests/unit/cli/explore/test_explore_commands.py",
    "explore catalog --probe": "tests/unit/cli/explore/test_explore_commands.py",
    "explore share": "tests/unit/cli/explore/test_explore_commands.py",
    "export --check": "tests/unit/cli/test_export_tune.py",
    "export --tune": "tests/unit/cli/test_export_tune.py",
    "plan --plan": "tests/unit/sharding/validate/test_dry_run.py",
}
"""By command, or by command and option, the test that runs it where no guide does."""


def is_open(command: DocumentedCommand) -> bool:
    """Whether something is left out of it."""
    return any(part in word for word in command.words for part in OPEN)


def run_options() -> dict[str, set[str]]:
    """By command, the options that tests of guides run it with."""
    found: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS:
        if command.is_run:
            _, path, left = resolve(command.words)
            found[" ".join(path)] |= options_of(left)
    return found


def test_there_are_many() -> None:
    assert sum(command.is_run for command in COMMANDS) > 50
    assert sum(not command.is_run for command in COMMANDS) > 50


def test_every_command_of_the_pages_is_one_of_the_program() -> None:
    wrong = []
    for command in COMMANDS:
        try:
            real, _, left = resolve(command.words)
        except KeyError as error:
            wrong.append(f"{command.text}: no command {error}")
            continue
        unknown = options_of(left) - known_options(real)
        if unknown:
            wrong.append(f"{command.text}: no option {', '.join(sorted(unknown))}")
    assert not wrong, "\n".join(wrong)


def test_commands_that_are_shown_whole_are_parsed_as_they_are() -> None:
    wrong = []
    for command in COMMANDS:
        real, path, left = resolve(command.words)
        # A command that is only named, or of which something is left out, lacks arguments.
        if is_group(real) or not left or is_open(command):
            continue
        try:
            # N and variables stand for numbers, other capitals for names.
            real.make_context(
                " ".join(path), ["1" if word == "N" or word[0] == "$" else word for word in left]
            )
        except Exception as error:
            # `--help` and the like end the program; they are taken.
            taken = {"Exit", *(("MissingParameter", "BadOptionUsage") if command.is_named else ())}
            if type(error).__name__ not in taken:
                wrong.append(f"{command.text}: {getattr(error, 'message', error)}")
    assert not wrong, "\n".join(wrong)


def test_what_no_guide_runs_has_a_test_or_is_listed_with_its_reason() -> None:
    run, unlisted = run_options(), []
    for command in COMMANDS:
        real, path, left = resolve(command.words)
        name = " ".join(path)
        if command.is_run or is_group(real) or name in NOT_RUN:
            continue
        missing = {f"{name} {option}" for option in options_of(left) - run.get(name, set())}
        if name not in run:
            missing.add(name)
        if missing - set(RUN_BY):
            unlisted.append(f"{command.text} ({', '.join(sorted(missing - set(RUN_BY)))})")
    if unlisted:
        pytest.fail(
            "no guide runs these; list a test in RUN_BY or a reason in NOT_RUN:\n" + "\n".join(unlisted)
        )


@pytest.mark.parametrize("shown", RUN_BY)
def test_the_tests_that_are_listed_run_them(shown: str) -> None:
    text = (ROOT / RUN_BY[shown]).read_text(encoding="utf-8")
    assert f'"{shown.split()[-1]}"' in text


def test_nothing_is_listed_that_no_page_shows() -> None:
    shown = set()
    for command in COMMANDS:
        _, path, left = resolve(command.words)
        shown |= {" ".join(path), *(f"{' '.join(path)} {option}" for option in options_of(left))}
    assert not {*RUN_BY, *NOT_RUN} - shown
