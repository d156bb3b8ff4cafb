"""A run whose publisher a test drives, and what a reader of its stream must arrive at."""

from __future__ import annotations

from pathlib import Path

import torch

from megalith.core.files import read_jsonl
from megalith.export.stored_weights import PRODUCTS, reduced_weights
from megalith.export.stream.followed import FollowedModel
from megalith.export.stream.reader import StreamReader
from megalith.export.stream.storage import StreamStorage
from megalith.export.tables import TableSource, freeze_table
from megalith.export.tensor_file import read_tensors
from megalith.export.trace import trace_model
from megalith.train.publishing.model_folder import TrainedModel
from megalith.train.publishing.publisher import Publisher
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer
from streamed_models import taken


class PublishedRun:
    """Trains some steps, publishes, and compares what was published with what was trained."""

    def __init__(self, recipe: Path, folder: Path, *overrides: str, **publish: object) -> None:
        self.folder, self.uri = folder, folder / "live"
        settings = {"uri": str(self.uri), "every_steps": 1, "tables": "float32", **publish}
        text = ", ".join(f"{key}: {value}" for key, value in settings.items())
        self.trainer = Trainer(load_recipe(recipe, [*overrides, f"publish={{{text}}}"]), folder / "run")
        self.trainer.create()
        self.told: list[str] = []
        self._batches = self.trainer.loader.stream()
        self.publisher = self._publisher()
        self.position, self.model, self._number = None, None, 0
        self.reader = StreamReader(StreamStorage.of(str(self.uri)))

    @property
    def learner(self):
        return self.trainer.learner

    def _publisher(self) -> Publisher:
        trainer = self.trainer
        model = TrainedModel("live", 0, trainer.dataset, trainer.run.inputs, self.learner.tables)
        return Publisher(trainer.run, trainer.recipe.publish, model, self.learner, self.told.append)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = next(self._batches)
            ids = self.learner.stages(trains=True).exchange(batch)
            resolved = self.learner.stages(trains=True).resolve(ids)
            self.learner.step(batch, 1.0, resolved)
            self.trainer.step += 1

    def publish(self) -> dict:
        """Publishes what there is, and waits; what the run's log says of it."""
        self.publisher.after(self.trainer.step)
        self.publisher._settle()
        return read_jsonl(self.trainer.run.published)[-1]

    def restart(self) -> None:
        """Another publisher, as in a process that resumes."""
        self.publisher.close()
        self.publisher = self._publisher()

    def follow(self) -> str:
        """Takes what was published; why not all of it, if so."""
        self._number += 1
        folder = self.folder / f"followed-{self._number}"
        folder.mkdir()
        self.model, self.position, problem = taken(self.reader, folder, self.position, self.model)
        return problem

    def is_followed(self) -> bool:
        """Whether the reader has every bit of the model as it is trained now, and nothing else."""
        assert isinstance(self.model, FollowedModel)
        learner, config = self.learner, self.trainer.recipe.publish
        states = learner.embeddings.table_states()
        for spec in learner.tables:
            path = self.folder / "truth.safetensors"
            path.unlink(missing_ok=True)
            source = TableSource(spec, states[spec.name], states.get(f"{spec.name}.unknown"))
            record = freeze_table(source, config.precision_of(spec.name), path)
            wanted = {name.removeprefix(f"{spec.name}/"): one for name, one in read_tensors(path).items()}
            held = self.model._held(spec.name)
            same = held.keys() == wanted.keys() and all(torch.equal(held[key], wanted[key]) for key in wanted)
            own = next(one for one in self.model.manifest.tables if one.name == spec.name)
            if not same or (own.rows, own.unknown) != (record.rows, record.unknown):
                return False
        width = sum(table.output_dim for table in learner.tables)
        traced = trace_model(learner.dense, len(self.trainer.dataset.schema.numeric), width)
        dense = reduced_weights(traced.program, traced.weights, PRODUCTS)
        return all(torch.equal(self.model.dense[name], weight) for name, weight in dense.items())

    def close(self) -> None:
        self.publisher.close()
        self.trainer.loader.close()
