"""Makes the partition that `megalith export MODEL --hardware NAME` asks for, and prints it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megalith.export.partition.guidance import Guidance
    from megalith.export.partition.lessons import Lesson
    from megalith.export.partition.prediction import Setting
    from megalith.export.partition.records import Partition


@dataclass(frozen=True, slots=True)
class ExportPlanOptions:
    """What the command was given."""

    hardware: str
    items: int = 270
    user_features: str | None = None
    """Names with commas between them."""
    tables: str | None = None
    dense: str | None = None
    cards: int | None = None
    host_tables: str | None = None
    """A size such as 1M."""
    json_output: bool = False


@dataclass(frozen=True, slots=True)
class PlannedExport:
    """All that the command shows."""

    setting: Setting
    partition: Partition
    choices: tuple[Partition, ...]
    """The same with other numbers of cards a replica."""
    guidance: tuple[Guidance, ...]
    """For this hardware first, then for other hosts of the catalog."""
    lessons: tuple[Lesson, ...]
    written: Path | None

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        shown = {**self.partition.model_dump(mode="json"), "gains": self.partition.gains}
        return {
            "partition": shown,
            "choices": [
                {
                    "cards_per_replica": len(choice.cards),
                    "replicas": choice.replicas,
                    **choice.prediction.model_dump(mode="json"),
                }
                for choice in self.choices
            ],
            "guidance": [asdict(each) for each in self.guidance],
            "lessons": [asdict(each) for each in self.lessons],
            "written": None if self.written is None else str(self.written),
        }


def plan_export(target: str, options: ExportPlanOptions) -> PlannedExport:
    """Cuts a model over a host's cards and prints what that costs; a frozen one keeps `partition.json`."""
    from megalith.cli.export.plan_tables import show_plan

    planned = make_plan(target, options)
    if not options.json_output:
        show_plan(planned)
    return planned


def plain_precision(tables: list[str] | None) -> str | None:
    """The one precision that all tables have on cards; one for a single table is refused."""
    from megalith.core.errors import ConfigError

    for given in tables or ():
        if "=" in given:
            raise ConfigError(
                f"--tables {given} is for freezing with --out; cards take one precision for all tables."
            )
    return tables[-1] if tables else None


def make_plan(target: str, options: ExportPlanOptions) -> PlannedExport:
    """Everything that is printed, and `partition.json` where the target is a frozen model."""
    from dataclasses import replace

    from megalith.cli.export.targets import MANIFEST, find_model
    from megalith.core.units import parse_bytes
    from megalith.cost.serving.card_host import card_host
    from megalith.export.partition.guidance import guidance
    from megalith.export.partition.lessons import lessons
    from megalith.export.partition.partitioner import SMALL_BYTES, CardPartitioner
    from megalith.export.partition.plan import partition
    from megalith.export.partition.prediction import Setting
    from megalith.hardware.catalog import find_cluster

    cluster = find_cluster(options.hardware)
    machine = card_host(cluster)
    model = find_model(target, cluster, options.tables, options.dense)
    if options.user_features:
        model = model.with_user_features([name.strip() for name in options.user_features.split(",")])
    small = SMALL_BYTES if options.host_tables is None else parse_bytes(options.host_tables)
    setting = Setting(model, machine, options.items)
    made = partition(setting, cards=options.cards, small_bytes=small)
    counts = CardPartitioner(setting, small).counts()
    return PlannedExport(
        setting,
        made,
        tuple(partition(setting, cards=count, small_bytes=small) for count in counts),
        tuple(guidance(replace(setting, machine=each)) for each in [machine, *_other_hosts(machine.name)]),
        tuple(lessons(setting, len(made.cards))),
        made.write(Path(target)) if (Path(target) / MANIFEST).is_file() else None,
    )


def _other_hosts(name: str) -> list[Any]:
    """Hosts with cards that the catalog has besides."""
    from megalith.cost.serving.card_host import card_host
    from megalith.hardware.catalog import catalog

    known = catalog()
    named = [other for other, spec in known.clusters.items() if spec.host is not None and other != name]
    return [card_host(known.cluster(other)) for other in named]
