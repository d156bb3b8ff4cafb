"""`Publisher`: versions of a model that trains, written by a thread of their own while training goes on.

    publisher = Publisher(run, config, model, learner)
    publisher.begin(step)         # the model as it is, whole: the first version of this start
    publisher.after(step)         # after every step; copies what changed where a version is due
    publisher.finish(step)        # what is left, and waits

Training waits for copies of rows alone. One version is under way at a time. What could not be published is in
the next version: nothing that changed is lost by a full disk or a store that is away.

Every start begins with a snapshot. A trainer that was killed goes on from its checkpoint, and what it had
published beyond that is undone by the snapshot: servers have what this trainer has.
"""

from __future__ import annotations

import copy
import json
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError, MegalithError, nearest
from megalith.core.files import append, read_json_object, write_atomic
from megalith.export.folder import new_model, table_file
from megalith.export.stored_weights import PRODUCTS, reduced_weights
from megalith.export.stream.changes import DeltaContent
from megalith.export.stream.records import VersionRecord
from megalith.export.stream.storage import StreamStorage
from megalith.export.stream.writer import StreamWriter
from megalith.export.tables import freeze_table
from megalith.export.trace import TracedModel, trace_model
from megalith.models.base import ClickModel
from megalith.train.learner.learner import Learner
from megalith.train.publishing.changed_tables import ChangedTables, TakenTables
from megalith.train.publishing.model_folder import TrainedModel, all_layers, write_rest
from megalith.train.publishing.settings import EVERY_TABLE, PublishConfig
from megalith.train.run.folder import RunFolder

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Published:
    """A version that was written."""

    record: VersionRecord
    seconds: float
    """That the thread took."""
    problem: str = ""
    """Why deltas were not made a snapshot, where that failed: the version is there."""


@dataclass(slots=True)
class _UnderWay:
    """A version that the thread writes."""

    step: int
    stall_seconds: float
    result: Future[Published]
    taken: TakenTables | None
    """None: a snapshot."""


class Publisher:
    """Publishes the model of one learner; its methods are called by the thread that trains."""

    def __init__(
        self,
        run: RunFolder,
        config: PublishConfig,
        model: TrainedModel,
        learner: Learner,
        tell: Tell = lambda sentence: None,
    ) -> None:
        """Writes nothing yet; `tell` gets a sentence when publishing fails, and when it succeeds again."""
        self._run, self._config, self._learner, self._tell = run, config, learner, tell
        names = [table.name for table in learner.tables]
        named = [] if isinstance(config.tables, str) else [*config.tables]
        for key, given, choices in (
            ("publish.tables", [name for name in named if name != EVERY_TABLE], names),
            ("publish.user", config.user, model.dataset.schema.feature_names),
        ):
            for name in given:
                if name not in choices:
                    raise ConfigError(f"{key} names '{name}'; {nearest(name, list(choices))}")
        self._model = replace(model, name=config.name or model.name, user=config.user)
        self._storage = StreamStorage.of(config.uri)
        self._tables = ChangedTables(learner.embeddings, learner.tables, config)
        self._dense: ClickModel = copy.deepcopy(learner.dense)
        """The dense part as of the version under way."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._writer: StreamWriter | None = None
        self._under_way: _UnderWay | None = None
        self._published_step = -1
        self._tried_step, self._tried = 0, time.monotonic()
        self._needs_snapshot, self._failed = True, False

    @property
    def _work(self) -> Path:
        return self._run.publishing / "work"

    def begin(self, step: int) -> None:
        """Has the model as it is now published whole; a place that cannot be written is refused here."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._writer = self._opened()
        self._start(step)

    def has_work(self, step: int) -> bool:
        """Whether `after` would do something."""
        return self._is_due(step) if self._under_way is None else self._under_way.result.done()

    def after(self, step: int) -> None:
        """Looks after the version under way, and begins the next one where it is due."""
        if self._under_way is not None and self._under_way.result.done():
            self._settle()
        if self._under_way is None and self._is_due(step):
            self._start(step)

    def finish(self, step: int) -> None:
        """Publishes what is left and waits until it is there, or has failed."""
        try:
            self._settle()
            if self._published_step != step:
                self._start(step)
                self._settle()
        finally:
            self.close()

    def close(self) -> None:
        """Ends the thread, after what it is at; nothing more is published."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._work, ignore_errors=True)

    def _is_due(self, step: int) -> bool:
        if self._config.every_steps is not None:
            return step - self._tried_step >= self._config.every_steps
        assert self._config.every_seconds is not None
        return time.monotonic() - self._tried >= self._config.every_seconds

    def _start(self, step: int) -> None:
        """Copies what is to be published and has it written."""
        began = time.perf_counter()
        self._tried_step, self._tried = step, time.monotonic()
        at, taken, job = time.time(), None, None
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            self._dense.load_state_dict(self._learner.dense.state_dict())
            if self._needs_snapshot:
                folder = self._frozen(step)
                job = self._thread.submit(self._write_snapshot, folder, step, at)
            else:
                taken = self._tables.take(self._work)
                job = self._thread.submit(self._write_delta, taken, step, at)
        except (MegalithError, OSError) as error:
            self._failure(step, error)
            return
        self._under_way = _UnderWay(step, time.perf_counter() - began, job, taken)

    def _settle(self) -> None:
        """What became of the version under way."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        taken = under_way.taken
        try:
            published = under_way.result.result()
        except (MegalithError, OSError) as error:
            if taken is not None:
                self._tables.give_back(taken, error)
            # What is there may be more than this process knows of.
            self._writer = None
            self._failure(under_way.step, error)
        else:
            if taken is None:
                self._needs_snapshot = False
            else:
                self._tables.keep(taken)
            self._success(under_way, published)
        finally:
            if taken is not None:
                taken.close()

    def _success(self, under_way: _UnderWay, published: Published) -> None:
        self._published_step = under_way.step
        record = published.record
        if self._failed:
            self._tell(f"Version {record.number} is published; nothing is missing.")
            self._failed = False
        if published.problem:
            self._tell(f"{published.problem} Version {record.number} is published.")
        counts = record.tables
        self._log(
            {
                "step": record.step,
                "version": record.number,
                "kind": record.kind,
                "time": record.time,
                "rows": sum(table.rows for table in counts),
                "deleted": sum(table.deleted for table in counts),
                "whole_tables": [table.name for table in counts if table.kind == "whole"],
                "bytes": None if record.file is None else record.file.bytes,
                "stall_seconds": round(under_way.stall_seconds, 6),
                "seconds": round(published.seconds, 6),
            }
        )

    def _failure(self, step: int, error: BaseException) -> None:
        if not self._failed:
            self._tell(f"Publishing failed and is tried again; the next version has all: {error}")
            self._failed = True
        self._log({"step": step, "failed": str(error)})

    def _log(self, entry: dict[str, Any]) -> None:
        append(self._run.published, json.dumps(entry).encode() + b"\n")

    def _frozen(self, step: int) -> Path:
        """The model as it is, as a frozen one; changes count from here on."""
        folder = self._work / f"snapshot-{uuid.uuid4().hex[:8]}"
        records = []
        with new_model(folder) as target:
            for number, (name, source) in enumerate(self._tables.sources().items()):
                precision = self._config.precision_of(name)
                records.append(freeze_table(source, precision, target / table_file(number)))
            write_rest(target, replace(self._model, step=step), records, self._traced())
        self._tables.begin(records)
        return folder

    def _traced(self) -> TracedModel:
        width = sum(table.output_dim for table in self._learner.tables)
        traced = trace_model(self._dense, len(self._model.dataset.schema.numeric), width)
        return TracedModel(all_layers(traced.program, self._config.dense), traced.weights)

    def _write_snapshot(self, folder: Path, step: int, at: float) -> Published:
        began = time.perf_counter()
        try:
            writer = self._writer = self._writer or self._opened()
            record = writer.add_snapshot(folder, step, at)
            writer.prune()
            return Published(record, time.perf_counter() - began)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write_delta(self, taken: TakenTables, step: int, at: float) -> Published:
        began = time.perf_counter()
        traced = self._traced()
        dense = reduced_weights(traced.program, traced.weights, PRODUCTS)
        content = DeltaContent(taken.encode(), dense)
        writer = self._writer = self._writer or self._opened()
        record = writer.add_delta(content, step, at, self._work)
        problem = ""
        if writer.delta_bytes > self._config.snapshot_share * writer.snapshot_bytes:
            try:
                writer.compact(self._work)
                writer.prune()
            except (MegalithError, OSError) as error:
                problem = str(error)
        return Published(record, time.perf_counter() - began, problem)

    def _opened(self) -> StreamWriter:
        return StreamWriter(self._storage, self._stream(), self._model.name, self._config.keep)

    def _stream(self) -> str:
        """The id of the run's stream, drawn once."""
        path = self._run.publishing / "stream.json"
        if path.exists():
            return str(read_json_object(path, fix="remove it, and publish to another place").get("stream"))
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = uuid.uuid4().hex
        write_atomic(path, json.dumps({"stream": stream}) + "\n")
        return stream
