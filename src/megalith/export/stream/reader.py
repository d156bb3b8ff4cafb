"""`StreamReader`: what there is of a stream, and how to get from one version to the newest.

    reader = StreamReader(StreamStorage.of("live"))
    found = reader.catch_up(position)     # the deltas that follow, or a snapshot and those after it
    found.problem                         # why it does not reach the newest version, one sentence
    reader.fetch_delta(record, path), reader.fetch_snapshot(snapshot, folder)

Versions are taken in their order and each once, whatever order their files came in: the next one is that
whose number is one more and whose record names the one before. Where it is missing or damaged a later
snapshot takes its place, and until there is one the version before is the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megalith.checkpoint.tensor_file import is_intact
from megalith.core.errors import MegalithError, ServeError
from megalith.export.folder import FrozenModel
from megalith.export.manifest import MANIFEST
from megalith.export.stream.records import (
    SNAPSHOT_FILE,
    SNAPSHOTS,
    VERSIONS,
    DamagedFileError,
    SnapshotRecord,
    VersionRecord,
    decode_record,
    delta_file,
    number_of,
    record_checksum,
    snapshot_folder,
    version_file,
)
from megalith.export.stream.storage import StreamStorage


@dataclass(frozen=True, slots=True)
class Position:
    """A version that somebody has."""

    stream: str
    number: int
    record: int
    """Checksum of its record."""
    step: int
    time: float
    """When its rows were read from the trainer."""

    @staticmethod
    def of(record: VersionRecord | SnapshotRecord) -> Position:
        """That of a record."""
        own = record.record if isinstance(record, SnapshotRecord) else record_checksum(record)
        return Position(record.stream, record.number, own, record.step, record.time)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """How to get to the newest version that can be reached."""

    newest: int
    """Number of the newest version that there is; 0 where there is none."""
    snapshot: SnapshotRecord | None = None
    """To be loaded first."""
    deltas: tuple[VersionRecord, ...] = ()
    """Then these, in this order."""
    problem: str = ""
    """Why they do not reach the newest version."""


class StreamReader:
    """Reads a stream that is being written."""

    def __init__(self, storage: StreamStorage) -> None:
        self.storage = storage
        self._known: dict[int, VersionRecord] = {}

    def numbers(self) -> list[int]:
        """Of all versions that have a record, rising."""
        listed = (number_of(name) for name in self.storage.list(VERSIONS))
        return sorted(number for number in listed if number is not None)

    def record(self, number: int) -> VersionRecord:
        """The record of a version, checked by itself."""
        found = self._known.get(number)
        if found is None:
            name = version_file(number)
            where = self.storage.where(name)
            found = decode_record(VersionRecord, self.storage.read(name), where)
            if found.number != number:
                raise DamagedFileError(f"{where} is the record of version {found.number}; it is not taken.")
            self._known[number] = found
        return found

    def snapshots(self) -> list[int]:
        """Versions of which there is a complete snapshot, rising."""
        ending = f"/{SNAPSHOT_FILE}"
        names = (name.removesuffix(ending) for name in self.storage.list(SNAPSHOTS) if name.endswith(ending))
        return sorted(int(name) for name in names if name.isdigit())

    def snapshot(self, number: int) -> SnapshotRecord:
        """The record of a snapshot, which is that of the version with its number."""
        name = f"{snapshot_folder(number)}/{SNAPSHOT_FILE}"
        where = self.storage.where(name)
        found = decode_record(SnapshotRecord, self.storage.read(name), where)
        if found.number != number or found.record != record_checksum(self.record(number)):
            raise DamagedFileError(f"{where} is not of version {number} of this stream; it is not taken.")
        return found

    def catch_up(self, position: Position | None, refused: Mapping[str, str] | None = None) -> CatchUp:
        """What to take next, from a version or from nothing. `refused` are files, by their name in the
        stream, that were found to be damaged, and a sentence about each."""
        refused = refused or {}
        numbers = self.numbers()
        # What was not taken may have been written again since.
        self._known.clear()
        newest = numbers[-1] if numbers else 0
        deltas: tuple[VersionRecord, ...] = ()
        problem = "" if numbers else f"{self.storage.uri} has no version yet."
        if position is not None:
            deltas, problem = self._after(position, newest, refused)
            if not problem:
                return CatchUp(newest, deltas=deltas)
        reached = position.number + len(deltas) if position is not None else 0
        for number in reversed([number for number in self.snapshots() if number > reached]):
            name = snapshot_folder(number)
            try:
                if name in refused:
                    raise DamagedFileError(refused[name])
                snapshot = self.snapshot(number)
                own = Position.of(snapshot)
                if position is not None and own.stream != position.stream:
                    raise ServeError(self._other_stream(position))
            except MegalithError as error:
                problem = problem or str(error)
                continue
            after, problem = self._after(own, newest, refused)
            return CatchUp(newest, snapshot, after, problem)
        return CatchUp(newest, deltas=deltas, problem=problem or f"{self.storage.uri} has no snapshot yet.")

    def fetch_delta(self, record: VersionRecord, path: Path) -> None:
        """Copies a delta to this machine, every byte checked."""
        name = delta_file(record.number)
        assert record.file is not None
        self.storage.download(name, path)
        if path.stat().st_size != record.file.bytes or not is_intact(path, record.file):
            raise DamagedFileError(
                f"{self.storage.where(name)} is damaged: its checksum is another; it is not taken."
            )

    def fetch_snapshot(self, snapshot: SnapshotRecord, folder: Path) -> FrozenModel:
        """Copies a snapshot into an empty folder, every byte checked."""
        source = snapshot_folder(snapshot.number)
        for name, file in snapshot.files.items():
            where = self.storage.where(f"{source}/{name}")
            if name.startswith("/") or ".." in Path(name).parts or "\0" in name:
                raise DamagedFileError(f"{where} is elsewhere; it is not taken.")
            self.storage.download(f"{source}/{name}", folder / name)
            if (folder / name).stat().st_size != file.bytes or not is_intact(folder / name, file):
                raise DamagedFileError(f"{where} is damaged: its checksum is another; it is not taken.")
        return FrozenModel(folder, verify=False)

    def snapshot_files(self, snapshot: SnapshotRecord) -> dict[str, object]:
        """What the manifest of a snapshot lists, without its files: to compare it with a folder."""
        content = json.loads(self.storage.read(f"{snapshot_folder(snapshot.number)}/{MANIFEST}"))
        files = content.get("files") if isinstance(content, dict) else None
        return files if isinstance(files, dict) else {}

    def _after(
        self, position: Position, newest: int, refused: Mapping[str, str]
    ) -> tuple[tuple[VersionRecord, ...], str]:
        """The deltas that follow a version, and why they end before the newest."""
        found: list[VersionRecord] = []
        before = position
        for number in range(position.number + 1, newest + 1):
            where = self.storage.where(version_file(number))
            try:
                record = self.record(number)
                if record.stream != position.stream:
                    return tuple(found), self._other_stream(position)
                if record.previous != before.record:
                    raise DamagedFileError(
                        f"{where} does not follow version {number - 1} as it is here: the stream was cut and "
                        "written again; it is not taken."
                    )
            except MegalithError as error:
                return tuple(found), str(error)
            if record.kind == "snapshot":
                return tuple(found), f"{where} is a snapshot, to which no delta leads."
            if delta_file(number) in refused:
                return tuple(found), refused[delta_file(number)]
            found.append(record)
            before = Position.of(record)
        if position.number > newest:
            return (), (
                f"{self.storage.uri} has version {newest} as its newest, and {position.number} was taken."
            )
        return tuple(found), ""

    def _other_stream(self, position: Position) -> str:
        return (
            f"{self.storage.uri} has another stream than the one that version {position.number} is of; "
            "restart the server to follow it."
        )
