"""`RivalPlan`: what a method stores in place of a model's tables, sized before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megalith.bench.adaptive.problem import SizeProblem
from megalith.bench.adaptive.rivals.head import Combination, VectorSource
from megalith.bench.adaptive.rivals.translated import StoredFeature, TranslatedTables, TranslateIds
from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import RowOptimizer

MakeRivalTables = Callable[[RowOptimizer, int], TranslatedTables]


@dataclass(frozen=True)
class RivalPlan:
    """The tables of a method, and how the model's vectors come from them."""

    stored: tuple[TableSpec, ...]
    sources: tuple[VectorSource, ...]
    make_tables: MakeRivalTables
    """By optimizer and seed."""


class PlanBuilder:
    """Collects what is stored, lookup by lookup; exempt tables are stored as they are."""

    def __init__(self, problem: SizeProblem) -> None:
        self.problem = problem
        self.stored: list[TableSpec] = []
        self.features: list[StoredFeature] = []
        self._sources: dict[tuple[str, str], VectorSource] = {}
        for table in problem.exempt:
            self.keep(table)

    def keep(self, table: TableSpec) -> None:
        """Stores a table as it is."""
        self.store(table, table)

    def store(
        self,
        table: TableSpec,
        stored: TableSpec,
        how: Combination = "copy",
        translate: TranslateIds | None = None,
    ) -> None:
        """Stores another table in place of one of the model's, for all of its features."""
        names = self._add(table, stored, translate)
        for feature, name in zip(table.features, names, strict=True):
            self._sources[table.name, feature] = VectorSource(((stored.name, name),), table.dim, how)

    def store_two(
        self,
        table: TableSpec,
        both: Sequence[tuple[TableSpec, TranslateIds]],
        how: Combination,
    ) -> None:
        """Stores two tables whose vectors are combined."""
        names = [self._add(table, stored, translate) for stored, translate in both]
        for number, feature in enumerate(table.features):
            parts = tuple((stored.name, own[number]) for (stored, _), own in zip(both, names, strict=True))
            self._sources[table.name, feature] = VectorSource(parts, table.dim, how)

    def pool(self, name: str, spec: TableSpec) -> None:
        """Stores one table for all lookups of all governed tables, in their order."""
        names = []
        for table in self.problem.governed:
            for feature in table.features:
                own = f"{name}/{table.name}/{feature}"
                names.append(own)
                self.features.append(StoredFeature(own, feature))
                self._sources[table.name, feature] = VectorSource(((name, own),), table.dim)
        self.stored.append(spec.model_copy(update={"name": name, "features": tuple(names), "store": None}))

    def plan(self, make_tables: MakeRivalTables | None = None) -> RivalPlan:
        """The plan; without `make_tables` its ids are translated and nothing else."""

        def translated(optimizer: RowOptimizer, seed: int) -> TranslatedTables:
            return TranslatedTables(self.problem.tables, self.stored, self.features, optimizer, seed)

        sources = [
            self._sources[table.name, feature] for table in self.problem.tables for feature in table.features
        ]
        return RivalPlan(tuple(self.stored), tuple(sources), make_tables or translated)

    def _add(self, table: TableSpec, stored: TableSpec, translate: TranslateIds | None) -> list[str]:
        names = [f"{stored.name}/{feature}" for feature in table.features]
        for feature, name in zip(table.features, names, strict=True):
            self.features.append(StoredFeature(name, feature, translate))
        self.stored.append(stored.model_copy(update={"features": tuple(names), "store": None}))
        return names
