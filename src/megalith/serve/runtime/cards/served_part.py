"""Parts of a version as cards run them: the whole model, lookups of some tables, or the dense part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, ServeError
from megalith.export.backends.base import LoadedPart, LoadSettings, ModelSource, Outputs
from megalith.export.backends.choice import ModelChoice, load_whole, parse_choice
from megalith.export.backends.inputs import (
    PartInputs,
    RequestIds,
    ScoreRequest,
    checked_numbers,
    lookup_columns,
)
from megalith.export.backends.kernels.tables import ColumnRun
from megalith.export.backends.registry import find_backend
from megalith.export.delta.source import DeltaModel
from megalith.export.manifest import ModelManifest
from megalith.export.program import DENSE, EMBEDDED
from megalith.serve.runtime.requests.bags import join_bags, select_bags
from megalith.serve.runtime.requests.joined import joined_requests, samples_of

_KNOWS_CHANGES = ("native", "torch")


@dataclass(frozen=True, slots=True)
class VersionParts:
    """How a version is cut: `partitions` of tables over cards, and `host` tables that the dense part reads
    itself. Without partitions the model runs whole."""

    partitions: tuple[tuple[str, ...], ...] = ()
    host: tuple[str, ...] = ()
    pooled: str = "float32"
    threads: int = 1
    backend: str = "native"


class CheckedEntry(NamedTuple):
    """The samples of one entry of a task, checked."""

    samples: int
    dense: Tensor | None
    ids: RequestIds | None


class ServedPart:
    """A loaded part, with what it takes from a request."""

    def __init__(
        self, manifest: ModelManifest, loaded: LoadedPart | None, tables: tuple[str, ...] | None
    ) -> None:
        self.manifest, self.loaded = manifest, loaded
        self._all = PartInputs(manifest, "lookups", None)
        self.features, self.user_features = self._all.features, self._all.user_features
        self._reads_dense = manifest.program.inputs.get(DENSE, 0) > 0
        self._item: list[int] | None = None
        self._user: list[int] | None = None
        self._plain: list[int] | None = None
        if tables is not None:
            own = PartInputs(manifest, "lookups", tables)
            self._plain = [self._all.features.index(name) for name in own.features]
            self._item = [self._all.item_features.index(name) for name in own.item_features]
            self._user = [self._all.user_features.index(name) for name in own.user_features]

    def check_ids(self, request: ScoreRequest, first: int, last: int) -> RequestIds:
        """The ids of some samples that this part looks up."""
        _, _, ids = self._all.checked(request)
        assert ids is not None
        assert ids.bags is not None
        if ids.user is None:
            return RequestIds(select_bags(ids.bags, self._plain, first, last))
        bags = select_bags(ids.bags, self._item, first, last)
        return RequestIds(bags, select_bags(ids.user, self._user, 0, 1))

    def check_dense(self, request: ScoreRequest, first: int, last: int) -> Tensor | None:
        """The numbers of some samples."""
        if not self._reads_dense:
            return None
        dense = request.dense
        if dense is not None:
            dense = dense[first:last]
        return checked_numbers(DENSE, dense, self.manifest.num_dense)

    def bytes(self) -> dict[str, int]:
        """As the backend counts them."""
        return {} if self.loaded is None else self.loaded.bytes()


class WholeCardPart(ServedPart):
    """The whole model on one card."""

    def run(self, requests: Sequence[ScoreRequest], ranges: Sequence[tuple[int, int]]) -> Outputs:
        """Outputs of the samples in range of each request, in their order; what is wrong is refused."""
        assert self.loaded is not None
        if len(requests) > 1 and requests[0].user_lengths is not None and self.user_features:
            return self._run_users(requests, ranges)
        if len(requests) > 1:
            joined = joined_requests(requests)
            if joined is None:
                raise ServeError("One of the requests is wrong.")
            return self.loaded.run(joined)
        request, (first, last) = requests[0], ranges[0]
        assert request.lengths is not None
        if first or last < request.lengths.shape[1]:
            some = samples_of(request, first, last)
            # The whole of it is refused with a sentence that says why.
            return self.loaded.run(request if some is None else some)
        return self.loaded.run(request)

    def _run_users(self, requests: Sequence[ScoreRequest], ranges: Sequence[tuple[int, int]]) -> Outputs:
        """Requests with their user's features apart: the rows of each user are looked up once."""
        assert self.loaded is not None
        entries = []
        for request, (first, last) in zip(requests, ranges, strict=True):
            dense = self.check_dense(request, first, last)
            ids = self.check_ids(request, first, last)
            assert ids.bags is not None
            if ids.bags.batch != last - first or (dense is not None and len(dense) != last - first):
                raise ServeError("One of the requests is wrong.")
            entries.append(CheckedEntry(last - first, dense, ids))
        return answer_entries(self.loaded, entries, _joined_dense(entries))


class LookupCardPart(ServedPart):
    """Lookups of the tables of one partition: ids in, pooled vectors out."""

    def __init__(self, manifest: ModelManifest, loaded: LoadedPart, tables: tuple[str, ...]) -> None:
        super().__init__(manifest, loaded, tables)
        self.width = sum(column.last - column.first for column in lookup_columns(manifest, tables))
        self.row_bytes = self.width * (2 if loaded.settings.pooled == "float16" else 4)
        """Of the pooled vectors of a sample."""

    def check(self, request: ScoreRequest, first: int, last: int) -> CheckedEntry:
        """Of one entry, the ids that are looked up here."""
        return CheckedEntry(last - first, None, self.check_ids(request, first, last))

    def run(self, entries: Sequence[CheckedEntry]) -> Outputs:
        """`embedded` of all samples of the entries."""
        assert self.loaded is not None
        return answer_entries(self.loaded, entries, None)


class DenseCardPart(ServedPart):
    """The dense part, which reads pooled vectors of every partition, and looks host tables up itself."""

    def __init__(
        self, manifest: ModelManifest, loaded: LoadedPart, host: LookupCardPart | None, spec: VersionParts
    ) -> None:
        super().__init__(manifest, loaded, None)
        self.host = host
        self._dtype = getattr(torch, spec.pooled)
        groups = [*spec.partitions, *([spec.host] if spec.host else [])]
        self._runs = [column_runs(manifest, tables) for tables in groups]
        self.widths = [sum(run.width for run in runs) for runs in self._runs]
        self.row_bytes = [width * self._dtype.itemsize for width in self.widths]
        """Of the pooled vectors of a sample, by partition."""
        self._width = manifest.program.inputs.get(EMBEDDED, 0)

    def check(self, request: ScoreRequest, first: int, last: int) -> CheckedEntry:
        """Of one entry the numbers, and the ids of host tables."""
        ids = None if self.host is None else self.host.check_ids(request, first, last)
        return CheckedEntry(last - first, self.check_dense(request, first, last), ids)

    def run(self, entries: Sequence[CheckedEntry], pooled: Sequence[memoryview | None]) -> Outputs:
        """Outputs of all samples, with pooled vectors of each partition; None is one that is lost."""
        assert self.loaded is not None
        samples = sum(entry.samples for entry in entries)
        sources: list[Tensor | None] = [
            None
            if memory is None or not width or not samples
            else torch.frombuffer(memory, dtype=self._dtype, count=samples * width).view(samples, width)
            for memory, width in zip(pooled, self.widths, strict=False)
        ]
        if self.host is not None:
            sources.append(self.host.run(entries)[EMBEDDED])
        dense = entries[0].dense if len(entries) == 1 else _joined_dense(entries)
        return self.loaded.answer(samples, dense, RequestIds(None, pooled=self._together(samples, sources)))

    def _together(self, samples: int, sources: Sequence[Tensor | None]) -> Tensor:
        first = sources[0] if sources else None
        as_is = len(sources) == 1 and len(self._runs[0]) == 1 and self._dtype == torch.float32
        if as_is and first is not None:
            return first
        embedded = torch.empty(samples, self._width)
        for source, runs in zip(sources, self._runs, strict=True):
            for begin, target, width in runs:
                columns = embedded[:, target : target + width]
                if source is None:
                    columns.zero_()
                else:
                    columns.copy_(source[:, begin : begin + width])
        return embedded


def column_runs(manifest: ModelManifest, tables: tuple[str, ...]) -> list[ColumnRun]:
    """Where the columns of some tables' vectors go among those of all."""
    targets = {(one.table, one.feature): one.first for one in lookup_columns(manifest)}
    runs: list[ColumnRun] = []
    for column in lookup_columns(manifest, tables):
        target, width = targets[column.table, column.feature], column.last - column.first
        before = runs[-1] if runs else None
        joins = before is not None and before.target + before.width == target
        if before is not None and joins:
            runs[-1] = before._replace(width=before.width + width)
        else:
            runs.append(ColumnRun(column.first, target, width))
    return runs


def load_parts(model: ModelSource, spec: VersionParts) -> list[ServedPart]:
    """The parts of a version by number: the whole, or the dense part and then each partition's lookups."""
    manifest, choice = model.manifest, where_rows_are(parse_choice(spec.backend))
    if isinstance(model, DeltaModel) and model.changed_bytes and choice.lookups.name not in _KNOWS_CHANGES:
        raise ConfigError(
            f"Backend '{choice.lookups.name}' does not read rows that a delta changed; serve the new version "
            "as a whole."
        )
    if not spec.partitions:
        return [WholeCardPart(manifest, load_whole(model, choice, spec.threads), None)]
    dense_choice = choice.dense or choice.lookups
    # The rows option is for lookups alone.
    options = {key: value for key, value in dense_choice.options.items() if key != "rows"}
    settings = LoadSettings(threads=spec.threads, options=options)
    dense = find_backend(dense_choice.name).load(model, "dense", settings)
    lookups = [_lookup_part(model, choice, tables, spec) for tables in spec.partitions]
    host = _lookup_part(model, choice, spec.host, replace(spec, pooled="float32")) if spec.host else None
    return [DenseCardPart(manifest, dense, host, spec), *lookups]


def where_rows_are(choice: ModelChoice) -> ModelChoice:
    """The choice with rows read where they are: a version has copied them to memory already."""
    if choice.lookups.name != "native":
        return choice
    options = {**choice.lookups.options, "rows": "file"}
    return replace(choice, lookups=replace(choice.lookups, options=options))


def _lookup_part(
    model: ModelSource, choice: ModelChoice, tables: tuple[str, ...], spec: VersionParts
) -> LookupCardPart:
    settings = LoadSettings(
        threads=spec.threads,
        tables=tables,
        pooled="float16" if spec.pooled == "float16" else "float32",
        options=choice.lookups.options,
    )
    loaded = find_backend(choice.lookups.name).load(model, "lookups", settings)
    return LookupCardPart(model.manifest, loaded, tables)


def _joined_dense(entries: Sequence[CheckedEntry]) -> Tensor | None:
    given = [entry.dense for entry in entries if entry.dense is not None]
    return torch.cat(given) if given else None


def answer_entries(loaded: LoadedPart, entries: Sequence[CheckedEntry], dense: Tensor | None) -> Outputs:
    """Outputs of all samples, looked up together where the part can; `dense` are the numbers of all."""
    if len(entries) == 1:
        return loaded.answer(entries[0].samples, dense, entries[0].ids)
    bags = [entry.ids.bags for entry in entries if entry.ids and entry.ids.bags]
    users = [entry.ids.user for entry in entries if entry.ids and entry.ids.user]
    samples = tuple(entry.samples for entry in entries)
    if users and not loaded.joins_users:
        outputs = [loaded.answer(entry.samples, entry.dense, entry.ids) for entry in entries]
        return {name: torch.cat([one[name] for one in outputs]) for name in outputs[0]}
    joined = RequestIds(join_bags(bags))
    if users:
        joined = joined._replace(user=join_bags(users), user_samples=samples)
    return loaded.answer(sum(samples), dense, joined)
