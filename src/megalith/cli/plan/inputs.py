"""What `megalith plan` plans: a recipe or a file of tables, on a cluster of the catalog, a file, or here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megalith.cost.ingestion import SampleShape
    from megalith.hardware.cluster import Cluster
    from megalith.sharding.planner.search import SearchSettings
    from megalith.sharding.planner.types import PlanInputs

LOCAL = "local"
"""The hardware that `megalith train` runs on: processes of machines like this one."""
TABLE_FILE_SECONDS = 9.0
"""How long a plan for a file of tables is looked for, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options of the command that say what to plan."""

    recipe: str | None
    overrides: list[str]
    tables: str | None
    hardware: str
    world_size: int | None
    workers_per_node: int | None
    global_batch: int | None
    pipelined: bool

    def inputs(self) -> PlanInputs:
        """Everything that the plan depends on, or one sentence that says what is missing."""
        from megalith.core.errors import ConfigError

        if self.tables is not None and self.recipe is not None and "=" not in self.recipe:
            raise ConfigError("Give a recipe or --tables, not both.")
        cluster = self.cluster()
        if self.tables is not None:
            inputs = self._table_file_inputs(self.tables, cluster)
        elif self.recipe is not None:
            inputs = self._recipe_inputs(self.recipe, cluster)
        else:
            raise ConfigError("Name a recipe, such as criteo-dlrm, or pass a file with --tables.")
        if self.pipelined:
            inputs = replace(inputs, workload=replace(inputs.workload, pipelined=True))
        return inputs

    def model_facts(self, inputs: PlanInputs) -> tuple[SampleShape, float | None]:
        """What readers send of a sample, and MFLOPs of its layers, forward; None where nobody says."""
        from megalith.cost.ingestion import SampleShape

        # Features that several tables read come once.
        ids = {table.features: inputs.statistics[table.name].lookups for table in inputs.tables}
        features = len({feature for names in ids for feature in names})
        numbers, mflops = self._layers()
        return SampleShape(numbers, features, sum(ids.values())), mflops

    def _layers(self) -> tuple[int, float | None]:
        if self.tables is not None:
            from megalith.sharding.planner.table_file import find_table_file, read_table_file

            file = read_table_file(find_table_file(self.tables))
            return file.numbers, file.mflops_per_sample
        from megalith.train.loaders import open_dataset
        from megalith.train.recipe import load_recipe
        from megalith.train.sharding_plan import dense_mflops

        assert self.recipe is not None
        settings = load_recipe(self.recipe, self.overrides)
        schema = open_dataset(settings.data).schema
        return len(schema.numeric), dense_mflops(settings, schema)

    def search(
        self, inputs: PlanInputs, algorithm: str, improve: bool, seconds: float | None
    ) -> SearchSettings:
        """How to look for the plan: a recipe's as training does, by counted steps; else by the clock."""
        from megalith.sharding.planner.search import SearchSettings, run_search

        if seconds is None and self.tables is None:
            settings = run_search(len(inputs.tables), inputs.topology.world_size)
        else:
            settings = SearchSettings(seconds=TABLE_FILE_SECONDS if seconds is None else seconds)
        return replace(settings, algorithm=algorithm, improve=improve)

    def cluster(self) -> Cluster:
        """By its catalog name, the last one that a YAML file describes, or machines like this one."""
        from megalith.hardware.catalog import find_cluster

        return self._local_cluster() if self.hardware == LOCAL else find_cluster(self.hardware)

    def _local_cluster(self) -> Cluster:
        from megalith.core.errors import ConfigError
        from megalith.sharding.planner.inputs import local_cluster

        if self.world_size is None:
            raise ConfigError(f"--hardware {LOCAL} needs --world-size, the number of ranks that will train.")
        return local_cluster(self.world_size, self.workers_per_node or self.world_size)

    def _recipe_inputs(self, recipe: str, cluster: Cluster) -> PlanInputs:
        """Tables of the recipe's model on the recipe's data, as training plans them."""
        from megalith.train.loaders import open_dataset
        from megalith.train.recipe import load_recipe
        from megalith.train.sharding_plan import recipe_inputs, runtime_memory

        settings = load_recipe(recipe, self.overrides)
        return recipe_inputs(
            settings,
            open_dataset(settings.data),
            cluster,
            world_size=self.world_size,
            workers_per_node=self.workers_per_node,
            # Training takes a recipe's batch over all workers.
            global_batch=self.global_batch,
            memory=runtime_memory(settings) if self.hardware == LOCAL else None,
        )

    def _table_file_inputs(self, name: str, cluster: Cluster) -> PlanInputs:
        """Tables of a file; its batch is that of every worker."""
        from megalith.sharding.plan import ExchangeConfig
        from megalith.sharding.planner.inputs import plan_inputs
        from megalith.sharding.planner.table_file import find_table_file, read_table_file
        from megalith.sharding.planner.types import Workload

        file = read_table_file(find_table_file(name))
        inputs = plan_inputs(
            file.tables,
            cluster,
            Workload(self.global_batch or file.batch_size, file.optimizer, file.exchange or ExchangeConfig()),
            world_size=self.world_size,
            workers_per_node=self.workers_per_node,
            statistics=file.statistics,
        )
        if self.global_batch is None:
            batch = file.batch_size * inputs.topology.world_size
            inputs = replace(inputs, workload=replace(inputs.workload, global_batch=batch))
        return inputs
