"""What a card needs: every shape on every host with one thing doubled at a time, as JSON and as pictures.

    python benchmarks/card_guidance.py --out benchmarks/results/card-guidance.json --images docs/images

All of it is predicted (`megalith export MODEL --hardware NAME` prints the same for one model), so it takes
seconds, and the same numbers come out on every machine. `large` is scaled on each host so that its tables
take nine tenths of what its cards have for them. Assumptions are halved and doubled one by one: what would
help most should not depend on a round figure.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from card_pictures import draw_guidance, draw_latency, draw_lessons

from megalith.bench.runner import result, save_result
from megalith.cost.serving.assumptions import ServingAssumptions
from megalith.cost.serving.card_host import card_host
from megalith.export.partition.guidance import guidance
from megalith.export.partition.lessons import lessons
from megalith.export.partition.partitioner import CardPartitioner
from megalith.export.partition.plan import partition
from megalith.export.partition.prediction import Setting
from megalith.export.partition.served.shape_file import served_shape, shipped_shape
from megalith.hardware.catalog import catalog

HOSTS = {
    "yosemite-v2": "6 NNP-I",
    "yosemite-v2-mtia-v1": "6 MTIA v1",
    "yosemite-v2-mtia-v2": "6 MTIA v2",
}
MODELS = ("rm1", "rm2", "rm3", "dlrm-v2", "large")
FILLED = 0.9
VARIED = ("product_fraction", "lookup_fraction", "link_fraction", "transfer_seconds", "host_request_seconds")


def setting_of(model: str, host: str) -> Setting:
    """A shape on a host; the large one fills it."""
    path = shipped_shape(model)
    assert path is not None
    setting = Setting(served_shape(path), card_host(catalog().cluster(host)))
    if model == "large":
        room = setting.machine.cards * CardPartitioner(setting).table_room
        setting = replace(setting, model=setting.model.with_table_bytes(int(FILLED * room)))
    return setting


def half_by_users(setting: Setting) -> Setting:
    """Every second table is the user's, as where a user is scored against many items."""
    names = [table.name for table in setting.model.tables[::2]]
    return replace(setting, model=setting.model.with_user_features(names))


def varied(setting: Setting) -> dict[str, list[str]]:
    """By assumption, what helps the rate most with half and with twice of it."""
    found = {}
    for name in VARIED:
        value = getattr(ServingAssumptions(), name)
        limit = 1.0 if name.endswith("fraction") else float("inf")
        both = [replace(setting.assumed, **{name: min(limit, factor * value)}) for factor in (0.5, 2)]
        found[name] = [_first(replace(setting, assumed=assumed)) for assumed in both]
    return found


def _first(setting: Setting) -> str:
    """The best change, more cards apart: they cost power and room."""
    return next(gain.change for gain in guidance(setting).gains if gain.change != "cards")


def predict(model: str, host: str) -> dict[str, Any]:
    """Everything of one model on one host."""
    setting = setting_of(model, host)
    made = partition(setting)
    shown = half_by_users(setting)
    return {
        "model": model,
        "hardware": host,
        "table_bytes": setting.model.table_bytes,
        "cards_per_replica": len(made.cards),
        "replicas": made.replicas,
        "prediction": made.prediction.model_dump(mode="json"),
        "slowest_card": {**made.comparison.model_dump(mode="json"), "saved": made.gains, "rule": made.rule},
        "guidance": asdict(guidance(setting)),
        "first_when_assumptions_vary": varied(setting),
        "lessons_half_by_users": [asdict(lesson) for lesson in lessons(shown)],
    }


def show(found: list[dict[str, Any]]) -> None:
    """The tables of the page."""
    print("| host | model | cards x replicas | latency | requests/s | bound by | requests/s a watt |")
    for one in found:
        predicted = one["prediction"]
        print(
            f"| {HOSTS[one['hardware']]} | {one['model']} | {one['cards_per_replica']} x {one['replicas']} | "
            f"{1e3 * predicted['latency_seconds']:.2f} ms | {predicted['requests_per_second']:,.0f} | "
            f"{predicted['bound_by']} | {predicted['requests_per_second_per_watt']:.1f} |"
        )
    print("\n| host | model | rule | saves of the platform's | of round robin | of bytes only | over bound |")
    for one in found:
        if one["cards_per_replica"] > 1:
            slowest, saved = one["slowest_card"], one["slowest_card"]["saved"]
            bound = one["prediction"]["slowest_card_seconds"] / slowest["lower_bound_seconds"] - 1
            others = " | ".join(
                f"{saved[name]:.1%}" if name in saved else "does not fit"
                for name in ("platform", "round robin", "bytes only")
            )
            print(
                f"| {HOSTS[one['hardware']]} | {one['model']} | {slowest['rule']} | {others} | {bound:.1%} |"
            )
    kept = changed = 0
    for one in found:
        first = next(gain["change"] for gain in one["guidance"]["gains"] if gain["change"] != "cards")
        for name, both in one["first_when_assumptions_vary"].items():
            for factor, other in zip(("half", "twice"), both, strict=True):
                kept += other == first
                changed += other != first
                if other != first:
                    print(f"{one['hardware']} {one['model']}: {name} {factor}: {other} instead of {first}")
    print(f"The first of the ranking stays in {kept} of {kept + changed} cases.")


def main() -> None:
    """Predicts, prints, saves and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=Path)
    given = parser.parse_args()
    found = [predict(model, host) for host in HOSTS for model in MODELS]
    show(found)
    if given.out:
        assumed = asdict(ServingAssumptions())
        save_result(given.out, result("card-guidance", assumed, {"cases": found}, None))
    if given.images:
        draw_guidance(given.images / "card-guidance.svg", found, HOSTS, MODELS)
        draw_latency(given.images / "card-latency.svg", found, HOSTS, MODELS)
        draw_lessons(given.images / "card-lessons.svg", found, MODELS)


if __name__ == "__main__":
    main()
