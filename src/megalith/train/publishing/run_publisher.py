"""`RunPublisher`: the publisher of a run as its loop calls it; of no effect where the recipe has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.text import Text

from megalith.core.errors import ConfigError
from megalith.core.trace import Tracer
from megalith.train.publishing.model_folder import TrainedModel
from megalith.train.publishing.publisher import Publisher

if TYPE_CHECKING:
    from rich.console import Console

    from megalith.data.dataset import Dataset
    from megalith.train.learner.learner import Learner
    from megalith.train.recipe import Recipe
    from megalith.train.run.folder import RunFolder


class RunPublisher:
    """Publishes one run, if its recipe asks for it."""

    def __init__(
        self, recipe: Recipe, run: RunFolder, dataset: Dataset, learner: Learner, console: Console | None
    ) -> None:
        """Writes nothing yet. A recipe that publishes is refused under torchrun."""
        self._publisher: Publisher | None = None
        if recipe.publish is None:
            return
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "publish is for a run of one process, whose rows are all in it; train without torchrun, or "
                "export checkpoints of the run with `megalith export`."
            )

        def tell(sentence: str) -> None:
            if console is not None:
                console.print(Text(sentence), highlight=False, soft_wrap=True)

        model = TrainedModel(recipe.name, 0, dataset, run.inputs, learner.tables)
        self._publisher = Publisher(run, recipe.publish, model, learner, tell)

    def begin(self, step: int, tracer: Tracer) -> None:
        """Before the first step of a start."""
        if self._publisher is not None:
            with tracer.span("publish"):
                self._publisher.begin(step)

    def after(self, step: int, tracer: Tracer) -> None:
        """After every step."""
        if self._publisher is not None and self._publisher.has_work(step):
            with tracer.span("publish"):
                self._publisher.after(step)

    def finish(self, step: int, tracer: Tracer) -> None:
        """After the last step."""
        if self._publisher is not None:
            with tracer.span("publish"):
                self._publisher.finish(step)

    def abandon(self) -> None:
        """Training has failed."""
        if self._publisher is not None:
            self._publisher.close()
