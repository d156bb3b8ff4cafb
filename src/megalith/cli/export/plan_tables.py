"""A partition as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.cli.output import print_table, say

if TYPE_CHECKING:
    from megalith.cli.export.plan import PlannedExport
    from megalith.export.partition.guidance import Guidance
    from megalith.export.partition.records import Partition


def show_plan(planned: PlannedExport) -> None:
    """Prints memory, latency, rate, rate per watt and what would raise them."""
    made = planned.partition
    _show_model(planned)
    _show_cards(made)
    _show_prediction(made)
    _show_choices(planned)
    _show_rules(made)
    for guidance in planned.guidance:
        _show_guidance(guidance)
    _show_lessons(planned)
    say(
        "All of this is predicted from data sheets and stated assumptions; none of it was measured on a card."
    )
    if planned.written is not None:
        say(f"Wrote {planned.written}.")


def _show_model(planned: PlannedExport) -> None:
    from megalith.core.units import format_bytes, format_count

    model, made = planned.setting.model, planned.partition
    flops = sum(model.dense.operations.values())
    replicas = f"{made.replicas} replica{'s' if made.replicas > 1 else ''} of {len(made.cards)}"
    idle = f", {made.idle_cards} idle" if made.idle_cards else ""
    say(
        f"{model.name} on {made.hardware}: {len(model.tables):,} tables of {format_bytes(model.table_bytes)} "
        f"in {model.precision}, {format_count(flops)}FLOP an item; {planned.setting.machine.cards} "
        f"{planned.setting.machine.card.name} as {replicas}{idle}."
    )
    if made.host_tables:
        held = format_bytes(made.host_table_bytes)
        say(f"{len(made.host_tables)} small tables ({held}) stay on the host.")
    if made.user_features:
        say(f"Looked up once a request: {', '.join(made.user_features)}.")


def _show_cards(made: Partition) -> None:
    from megalith.core.units import format_bytes, format_count, format_duration

    rows = []
    for number, card in enumerate(made.cards):
        busiest = max(card.busy_seconds, key=lambda part: card.busy_seconds[part])
        free = card.memory_bytes - card.table_bytes - card.dense_bytes
        rows.append(
            [
                number,
                len(card.tables),
                format_bytes(card.table_bytes),
                format_bytes(card.dense_bytes),
                format_bytes(free),
                format_count(card.lookups),
                format_duration(card.sparse_seconds),
                f"{busiest.replace('_', ' ')} {format_duration(card.busy_seconds[busiest])}",
                f"{card.requests_per_second:,.0f}",
            ]
        )
    print_table(
        "Cards of a replica; each also runs the dense part in turn",
        [
            "card",
            "tables",
            "table bytes",
            "dense bytes",
            "free",
            "lookups",
            "sparse part",
            "busiest",
            "requests/s",
        ],
        rows,
    )


def _show_prediction(made: Partition) -> None:
    from megalith.core.units import format_parts

    predicted = made.prediction
    latency, parts = format_parts({name: part for name, part in predicted.latency_parts.items() if part > 0})
    consists = ", ".join(f"{name} {seconds}" for name, seconds in parts.items())
    say(f"A request of {predicted.items} items takes {latency} ({consists}).")
    say(
        f"Rate (prediction): {predicted.requests_per_second:,.0f} requests/s, "
        f"{predicted.items_per_second:,.0f} items/s, bound by {predicted.bound_by}. Rate per watt "
        f"(prediction): {predicted.requests_per_second_per_watt:.3g} requests/s a watt of "
        f"{predicted.watts:.0f} W."
    )


def _show_choices(planned: PlannedExport) -> None:
    from megalith.core.units import format_duration

    if len(planned.choices) < 2:
        return
    rows = [
        [
            len(choice.cards),
            choice.replicas,
            format_duration(choice.prediction.latency_seconds),
            f"{choice.prediction.requests_per_second:,.0f}",
            choice.prediction.bound_by,
        ]
        for choice in planned.choices
    ]
    columns = ["cards a replica", "replicas", "latency", "requests/s", "bound by"]
    print_table("Other numbers of cards a replica (--cards)", columns, rows)


def _show_rules(made: Partition) -> None:
    from megalith.core.units import format_duration

    if len(made.cards) == 1:
        return
    gains = made.gains
    rows = [
        [f"{name} (taken)" if name == made.rule else name, format_duration(seconds), f"{gains[name]:.1%}"]
        for name, seconds in made.comparison.slowest_card_seconds.items()
    ]
    bound = made.comparison.lower_bound_seconds
    slowest = made.prediction.slowest_card_seconds
    rows.append(["no placement beats", format_duration(bound), f"{1 - slowest / bound:.1%}"])
    print_table("Slowest card by placement", ["placement", "seconds", "saved by the one taken"], rows)


def _show_guidance(guidance: Guidance) -> None:
    from megalith.core.units import format_duration

    if guidance.now is None:
        would = ", ".join(f"twice the {change}" for change in guidance.made_to_fit) or "no single doubling"
        say(f"{guidance.model} does not fit on {guidance.hardware}; {would} would make it fit.")
        return
    now = guidance.now
    rows = [
        [
            f"2x {gain.change}",
            f"{gain.rate:.2f}x",
            f"{gain.latency:.2f}x",
            f"{gain.rate_per_watt:.2f}x",
            gain.bound_by,
        ]
        for gain in guidance.gains
    ]
    print_table(
        f"{guidance.hardware}: what would raise it most, from {now.requests_per_second:,.0f} requests/s "
        f"(bound by {now.bound_by}) and {format_duration(now.latency_seconds)}, each at its best number of "
        "cards",
        ["change", "rate", "latency", "rate per watt", "then bound by"],
        rows,
    )


def _show_lessons(planned: PlannedExport) -> None:
    rows = [
        [
            lesson.name,
            "does not fit" if lesson.latency is None else f"{lesson.latency:.2f}x",
            "" if lesson.rate is None else f"{1 / lesson.rate:.2f}x",
        ]
        for lesson in planned.lessons
    ]
    print_table("Moving less: what a request would take without", ["lesson", "latency", "rate"], rows)
