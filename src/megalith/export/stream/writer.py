"""`StreamWriter`: the one that writes a stream: versions in their order, snapshots, and what may go.

    writer = StreamWriter(storage, stream_id, "clicks", keep=2)
    writer.add_snapshot(folder, step, time)      # version 1, a frozen model
    writer.add_delta(content, step, time)        # version 2
    writer.compact(work)                         # version 2 as a snapshot, made of files of the stream alone
    writer.prune()                               # what only older snapshots need

A version exists from the moment its record is written, which is last. What a killed writer has left of one
that has no record is written over by the next.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from megalith.core.errors import ConfigError, MegalithError
from megalith.export.folder import is_model, list_files
from megalith.export.manifest import MANIFEST
from megalith.export.stream.changes import DeltaContent, newest, read_content, write_content
from megalith.export.stream.followed import FollowedModel, write_whole
from megalith.export.stream.reader import Position, StreamReader
from megalith.export.stream.records import (
    DELTAS,
    SNAPSHOT_FILE,
    SNAPSHOTS,
    VERSIONS,
    DamagedFileError,
    SnapshotRecord,
    VersionRecord,
    delta_file,
    encode_record,
    record_checksum,
    snapshot_folder,
    version_file,
)
from megalith.export.stream.storage import StreamStorage
from megalith.export.tensor_file import file_record


class StreamWriter:
    """Adds versions to a stream; one at a time, from any thread."""

    def __init__(self, storage: StreamStorage, stream: str, model: str, keep: int = 2) -> None:
        """`stream` is its id; one that is there already must have it. `keep` is of snapshots."""
        self.storage, self.stream, self.model, self._keep = storage, stream, model, keep
        self.reader = StreamReader(storage)
        numbers = self.reader.numbers()
        self.head: VersionRecord | None = self.reader.record(numbers[-1]) if numbers else None
        """The newest version."""
        if self.head is not None and self.head.stream != stream:
            raise ConfigError(
                f"{storage.uri} has the versions of another run; choose another publish.uri, or remove what "
                "is there."
            )
        storage.clean(VERSIONS, DELTAS)
        self.snapshot_number = 0
        """The newest version of which there is a snapshot."""
        self.snapshot_bytes = self.delta_bytes = 0
        """Of the newest snapshot, and of the deltas after it."""
        self._count()

    @property
    def next_number(self) -> int:
        """Of the version that is written next."""
        return 1 if self.head is None else self.head.number + 1

    def add_delta(self, content: DeltaContent, step: int, time: float, work: Path) -> VersionRecord:
        """Writes a version that follows the newest one; `work` is a folder for its file meanwhile."""
        path = work / f"delta-{uuid.uuid4().hex[:8]}"
        try:
            write_content(path, content)
            record = self._record("delta", step, time).model_copy(
                update={"tables": content.counts(), "file": file_record(path)}
            )
            self.storage.upload(path, delta_file(record.number))
        finally:
            path.unlink(missing_ok=True)
        self._commit(record)
        assert record.file is not None
        self.delta_bytes += record.file.bytes
        return record

    def add_snapshot(self, folder: Path, step: int, time: float) -> VersionRecord:
        """Writes a version that is a frozen model, whatever the newest one is."""
        assert is_model(folder)
        record = self._record("snapshot", step, time)
        self._upload_snapshot(folder, record)
        self._commit(record)
        self._count()
        return record

    def compact(self, work: Path) -> bool:
        """Makes a snapshot of the newest version out of the one before and the deltas since; whether there
        was something to do. A file of the stream that is missing or damaged is an error that names it."""
        head = self.head
        numbers = [number for number in self.reader.snapshots() if head and number <= head.number]
        if head is None or not numbers or numbers[-1] == head.number:
            return False
        folder = work / f"compact-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir(parents=True)
            snapshot = self.reader.snapshot(numbers[-1])
            base = FollowedModel.of(self.reader.fetch_snapshot(snapshot, folder / "base"))
            contents, before = [], Position.of(snapshot)
            for number in range(snapshot.number + 1, head.number + 1):
                record = self.reader.record(number)
                if record.previous != before.record or record.kind != "delta":
                    where = self.storage.where(version_file(number))
                    raise DamagedFileError(f"{where} does not follow the version before it.")
                self.reader.fetch_delta(record, folder / f"{number}.safetensors")
                contents.append(read_content(folder / f"{number}.safetensors"))
                before = Position.of(record)
            merged = newest(contents)
            after = base.advance(merged, Position.of(head), self.storage.uri)
            write_whole(after, folder / "whole")
            self._upload_snapshot(folder / "whole", head)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._count()
        return True

    def prune(self) -> None:
        """Removes what nobody needs who begins with one of the snapshots that are kept."""
        numbers = self.reader.snapshots()
        if len(numbers) <= self._keep:
            return
        oldest = numbers[-self._keep]
        # A version is gone before what it needs.
        for number in self.reader.numbers():
            if number < oldest:
                self.storage.remove(version_file(number))
        for name in self.storage.list(DELTAS):
            stem = Path(name).stem
            if stem.isdigit() and int(stem) < oldest:
                self.storage.remove(f"{DELTAS}/{name}")
        for number in numbers[: -self._keep]:
            self.storage.remove(f"{snapshot_folder(number)}/{SNAPSHOT_FILE}")
        for name in {name.partition("/")[0] for name in self.storage.list(SNAPSHOTS)}:
            if name.isdigit() and int(name) < oldest:
                self.storage.remove_folder(f"{SNAPSHOTS}/{name}")

    def _record(self, kind: str, step: int, time: float) -> VersionRecord:
        previous = 0 if self.head is None else record_checksum(self.head)
        return VersionRecord.model_validate(
            {
                "stream": self.stream,
                "number": self.next_number,
                "previous": previous,
                "kind": kind,
                "model": self.model,
                "step": step,
                "time": time,
            }
        )

    def _upload_snapshot(self, folder: Path, record: VersionRecord) -> None:
        target = snapshot_folder(record.number)
        # What a killed writer left under the number must not mix with this.
        self.storage.remove_folder(target)
        files = {**list_files(folder), MANIFEST: file_record(folder / MANIFEST)}
        for name in files:
            self.storage.upload(folder / name, f"{target}/{name}")
        snapshot = SnapshotRecord(
            stream=self.stream,
            number=record.number,
            record=record_checksum(record),
            step=record.step,
            time=record.time,
            files=files,
        )
        self.storage.write(f"{target}/{SNAPSHOT_FILE}", encode_record(snapshot))

    def _commit(self, record: VersionRecord) -> None:
        self.storage.write(version_file(record.number), encode_record(record))
        self.head = record

    def _count(self) -> None:
        """Reads how large the newest snapshot is, and what came after it."""
        self.snapshot_number = self.snapshot_bytes = self.delta_bytes = 0
        head = 0 if self.head is None else self.head.number
        for number in reversed(self.reader.snapshots()):
            try:
                snapshot = self.reader.snapshot(number)
            except MegalithError:
                # Left by a killed writer, or damaged: it is none.
                continue
            self.snapshot_number = number
            self.snapshot_bytes = sum(file.bytes for file in snapshot.files.values())
            break
        for number in range(self.snapshot_number + 1, head + 1):
            try:
                file = self.reader.record(number).file
            except MegalithError:
                continue
            self.delta_bytes += file.bytes if file else 0
