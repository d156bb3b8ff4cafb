"""`StreamFollower`: has an engine serve the newest version of a stream.

    follower = StreamFollower(uri, engine, settings, copies, says)
    follower.look()           # takes what there is; whether a newer version serves
    follower.status           # how far it is, and what is in the way

Versions go up and never back. Several that wait are merged, of each row the newest, and taken as one: a
request sees all of a version or nothing of it. Whatever is missing, damaged or worse is refused by name, and
the version before goes on serving until it comes right, or a later snapshot takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from megalith.core.errors import MegalithError, ServeError, sentence_of
from megalith.export.stream.changes import DeltaContent, RowChanges, newest, read_content
from megalith.export.stream.followed import FollowedModel, write_local_delta, write_whole
from megalith.export.stream.reader import Position, StreamReader
from megalith.export.stream.records import SnapshotRecord, VersionRecord, delta_file, snapshot_folder
from megalith.export.stream.storage import StreamStorage
from megalith.serve.engine import Engine
from megalith.serve.follow.copies import LocalCopies, remove
from megalith.serve.follow.held_version import HeldVersion
from megalith.serve.follow.refusals import Refusals
from megalith.serve.follow.settings import FollowSettings
from megalith.serve.follow.status import FollowStatus

Says = Callable[[str], None]
_WAYS = 4
"""That are tried in one look to get past what is refused."""


class NotTakenError(ServeError):
    """A version or a file of one was refused; the sentence names it."""

    def __init__(self, sentence: str, name: str) -> None:
        super().__init__(sentence)
        self.name = name
        """In the stream."""


class StreamFollower:
    """Follows one stream; its methods are called by one thread, `status` by any."""

    def __init__(
        self, uri: str, engine: Engine, settings: FollowSettings, copies: LocalCopies, says: Says
    ) -> None:
        """Reads nothing yet; `says` gets a sentence when something is in the way, and when it is no more."""
        self._reader = StreamReader(StreamStorage.of(uri))
        self._engine, self._settings, self._copies, self._says = engine, settings, copies, says
        self._refusals = Refusals(settings.every_seconds)
        self._held: HeldVersion | None = None
        self.status = FollowStatus(uri)

    def look(self) -> bool:
        """Takes what there is of newer versions, as much as at once; whether one was taken."""
        self._copies.sweep()
        before, problem, refused = self.status.version, "", self._refusals.current()
        for _ in range(_WAYS):
            try:
                problem = self._look(refused)
                break
            except NotTakenError as error:
                # There may be another way to a newer version: a snapshot, or fewer deltas at a time.
                problem = str(error)
                refused = {**refused, **self._refusals.current(), error.name: problem}
            except Exception as error:
                # Whatever it is, the version that serves goes on, and the next look may do better.
                problem = _sentence(error, self.status.uri)
                break
        self._found(problem)
        return self.status.version > before

    def _look(self, refused: Mapping[str, str]) -> str:
        """Why the newest version is not served, if it is not."""
        position = None if self._held is None else self._held.position
        found = self._reader.catch_up(position, refused)
        self.status = replace(self.status, newest=found.newest)
        if found.snapshot is not None:
            self._take_snapshot(found.snapshot)
        if found.deltas:
            self._take_deltas(found.deltas)
        return found.problem

    def _take_snapshot(self, snapshot: SnapshotRecord) -> None:
        folder, position = self._copies.path(f"snapshot-{snapshot.number}"), Position.of(snapshot)
        with self._refusing(snapshot_folder(snapshot.number)), _removed_on_error(folder):
            folder.mkdir()
            model = FollowedModel.of(self._reader.fetch_snapshot(snapshot, folder))
            self._serve(folder, model, position)
        self._take_over(HeldVersion(model, position, (folder,)))
        self.status = replace(self.status, snapshots=self.status.snapshots + 1)

    def _take_deltas(self, records: Sequence[VersionRecord]) -> None:
        contents: list[DeltaContent] = []
        size, error = 0, None
        fetched = self._copies.path("fetched")
        try:
            for record in records:
                size += 0 if record.file is None else record.file.bytes
                if contents and size > self._settings.catch_up_bytes:
                    break
                name = delta_file(record.number)
                path = fetched / Path(name).name
                with self._refusing(name):
                    self._reader.fetch_delta(record, path)
                    contents.append(read_content(path))
        except NotTakenError as found:
            error = found
        try:
            if contents:
                self._advance(contents, records[len(contents) - 1])
        finally:
            # Contents are mapped, and stay as long as they are used.
            remove(fetched)
        if error is not None:
            raise error

    def _advance(self, contents: Sequence[DeltaContent], last: VersionRecord) -> None:
        held, position, name = self._held, Position.of(last), delta_file(last.number)
        assert held is not None
        folder, where = self._copies.path(f"version-{last.number}"), self._reader.storage.where(name)
        with self._refusing(name), _removed_on_error(folder):
            content = newest(contents)
            size = _rows_bytes(content)
            rebuilds = held.wants_rebuild(size, self._settings) or not self._serves(held)
            if rebuilds:
                model = write_whole(held.model.advance(content, position, where), folder)
            else:
                model = write_local_delta(held.model, content, position, where, folder)
            self._serve(folder, model, position)
        if rebuilds:
            self._take_over(HeldVersion(model, position, (folder,)))
        else:
            self._held = held.with_delta(model, position, folder, size)
        rows = sum(table.rows for table in content.counts())
        self.status = replace(
            self.status,
            deltas=self.status.deltas + len(contents),
            rows=self.status.rows + rows,
            rebuilt=self.status.rebuilt + rebuilds,
        )

    def _serves(self, held: HeldVersion) -> bool:
        """Whether the engine still has this version: someone may have unloaded it."""
        served = self._engine.models().get(held.model.manifest.name)
        return served is not None and str(held.position.number) in served.versions

    def _serve(self, folder: Path, model: FollowedModel, position: Position) -> None:
        name = model.manifest.name
        self._engine.load(folder, name, str(position.number), live=True)
        self._refusals.clear(keep=self._later(position.number))
        self.status = self.status.serving(name, position)

    def _later(self, number: int) -> list[str]:
        """Names of what follows a version, as far as it was refused in this look."""
        later = range(number + 1, self.status.newest + 1)
        return [delta_file(each) for each in later]

    def _take_over(self, held: HeldVersion) -> None:
        for folder in () if self._held is None else self._held.folders:
            self._copies.remove_later(folder)
        self._held = held

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Refuses a file of the stream by its name where the block fails."""
        try:
            yield
        except Exception as error:
            sentence = _sentence(error, self._reader.storage.where(name))
            self._refusals.add(name, sentence)
            self.status = replace(self.status, refused=self._refusals.count)
            raise NotTakenError(sentence, name) from error

    def _found(self, problem: str) -> None:
        """Says what has changed since the last look."""
        status = self.status
        self.status = replace(status, problem=problem)
        if problem and problem != status.problem:
            tail = f" Version {status.version} goes on serving." if status.version else ""
            self._says(f"{problem}{tail}")
        elif status.problem and not problem:
            self._says(f"Version {status.version} of '{status.model}' serves; nothing is missing.")


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove(path)
        raise


def _rows_bytes(content: DeltaContent) -> int:
    """Of rows that are held beside those they take the place of."""
    return sum(
        change.rows.numel() + 8 * len(change.ids)
        for change in content.tables.values()
        if isinstance(change, RowChanges)
    )


def _sentence(error: Exception, where: str) -> str:
    """What to say of an error; it names the file."""
    text = sentence_of(error) or f"{type(error).__name__}: {error}"
    if where in text:
        return text
    known = isinstance(error, MegalithError)
    return f"{where} is not taken: {text}" if known else f"{where} cannot be taken ({text}); publish again."
