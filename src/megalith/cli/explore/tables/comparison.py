"""What `megalith explore compare` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megalith.cli.output import print_table, say
from megalith.core.units import format_bytes, format_duration
from megalith.explore.plan_text import bound_name

if TYPE_CHECKING:
    from megalith.explore.compare import Comparison
    from megalith.explore.prediction import Prediction


def show_comparison(comparison: Comparison) -> None:
    """Both jobs' figures, the settings that differ, and what each changed section brings."""
    first, second = comparison.first.prediction, comparison.second.prediction
    ratio = comparison.speed_up
    verdict = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times slower"
    sure = "more" if comparison.sure else "less"
    names = [comparison.first.name, comparison.second.name]
    print_table(
        f"{names[1]} is {verdict} as {names[0]}"
        if ratio >= 1
        else f"{names[1]} is {verdict} than {names[0]}",
        ["", *names],
        [
            ["step", format_duration(first.step_seconds), format_duration(second.step_seconds)],
            ["MFU", f"{first.mfu:.1%}", f"{second.mfu:.1%}"],
            ["memory", *(format_bytes(each.memory_bytes_per_device) for each in (first, second))],
            ["bound by", bound_name(first.bound_by), bound_name(second.bound_by)],
            ["80% interval", *(_interval(each) for each in (first, second))],
            ["stack", first.stack, second.stack],
            *(
                [name.replace("_", " "), format_duration(seconds[0]), format_duration(seconds[1])]
                for name, seconds in comparison.seconds_by_cause().items()
            ),
        ],
    )
    against = (
        f"plans of one model are wrong against each other ({first.plan_error:.1%})"
        if comparison.alike
        else "both may be wrong"
    )
    say(f"The two differ by {sure} than {against}.")
    print_table(
        "What differs",
        ["", *names],
        [[entry.key, _text(entry.first), _text(entry.second)] for entry in comparison.differences],
    )
    if comparison.changes:
        print_table(
            f"From {names[0]} to {names[1]}, one part after the other",
            ["changed", "step", "saved"],
            [
                [
                    " and ".join(change.sections),
                    format_duration(change.step_seconds),
                    _signed(change.saved_seconds),
                ]
                for change in comparison.changes
            ],
        )


def _interval(prediction: Prediction) -> str:
    low, high = prediction.interval
    return f"{format_duration(low)} to {format_duration(high)}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _signed(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0 else f"-{format_duration(-seconds)}"
