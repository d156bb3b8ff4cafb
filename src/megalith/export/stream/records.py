"""What a stream of versions says of itself: the record of a version, and that of a snapshot.

    versions/0000000007.json          version 7: written last, it is what makes the version exist
    deltas/0000000007.safetensors     rows and dense part that changed since version 6
    snapshots/0000000007/             version 7 whole, a frozen model, once snapshot.json is in it

A version is a number, and each is one more than the one before. A record names the checksum of the record
before it, so that a reader sees a gap, a stream that was cut and written again, and a record of another
stream. Records have a checksum of their own, and sizes and checksums of the files of their version.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Literal, TypeVar

from pydantic import Field

from megalith.checkpoint.manifest import FileRecord
from megalith.core.config import Config, parse_config
from megalith.core.errors import ServeError
from megalith.core.files import parse_json

VERSIONS, DELTAS, SNAPSHOTS, SNAPSHOT_FILE = "versions", "deltas", "snapshots", "snapshot.json"
FORMAT_VERSION = 1
_NUMBER = re.compile(r"(\d{10})\.json")


class DamagedFileError(ServeError):
    """A file of a stream has another content than it was written with."""


class TableCounts(Config):
    """What a version changes in a table."""

    name: str
    kind: Literal["rows", "whole"]
    """`whole`: all of its rows are in the version, in place of those before."""
    rows: int = Field(ge=0)
    """That are in the version."""
    deleted: int = Field(default=0, ge=0)
    """Ids that lost their row."""


class VersionRecord(Config):
    """The content of `versions/NUMBER.json`."""

    format: Literal["megalith-stream-version"] = "megalith-stream-version"
    version: int = FORMAT_VERSION
    """Of this format."""
    stream: str
    """Which stream it belongs to: an id that is drawn when a stream begins."""
    number: int = Field(ge=1)
    previous: int
    """Checksum of the record before; 0 of the first."""
    kind: Literal["delta", "snapshot"]
    """`snapshot`: there is no delta that leads here from the version before."""
    model: str
    """Its name."""
    step: int
    """Training steps behind it."""
    time: float
    """When its rows were read from the trainer, in seconds since 1970."""
    tables: tuple[TableCounts, ...] = ()
    """Those that a delta changes."""
    file: FileRecord | None = None
    """Of a delta."""


class SnapshotRecord(Config):
    """The content of `snapshots/NUMBER/snapshot.json`."""

    format: Literal["megalith-stream-snapshot"] = "megalith-stream-snapshot"
    version: int = FORMAT_VERSION
    stream: str
    number: int = Field(ge=1)
    record: int
    """Checksum of the record of this version, which the next one names."""
    step: int
    time: float
    files: dict[str, FileRecord]
    """Of the frozen model, its manifest among them."""


RecordT = TypeVar("RecordT", VersionRecord, SnapshotRecord)


def version_file(number: int) -> str:
    """Where the record of a version is.

    >>> version_file(7)
    'versions/0000000007.json'
    """
    return f"{VERSIONS}/{number:010d}.json"


def delta_file(number: int) -> str:
    """Where the delta of a version is."""
    return f"{DELTAS}/{number:010d}.safetensors"


def snapshot_folder(number: int) -> str:
    """Where the snapshot of a version is."""
    return f"{SNAPSHOTS}/{number:010d}"


def number_of(name: str) -> int | None:
    """The version that a file of `versions/` is of; None of any other file.

    >>> number_of("0000000007.json"), number_of("0000000007 (copy).json")
    (7, None)
    """
    found = _NUMBER.fullmatch(name)
    return int(found[1]) if found else None


def record_checksum(record: VersionRecord | SnapshotRecord) -> int:
    """What the next record names."""
    return _checksum(record.model_dump(mode="json"))


def encode_record(record: VersionRecord | SnapshotRecord) -> bytes:
    """A record as its file has it."""
    content = record.model_dump(mode="json")
    return (json.dumps({**content, "crc32": _checksum(content)}, indent=1) + "\n").encode()


def decode_record(cls: type[RecordT], content: bytes, where: str) -> RecordT:
    """The record in a file, checked; one sentence that names the file where it is damaged."""
    try:
        found = parse_json(content.decode())
    except ValueError as error:
        raise DamagedFileError(f"{where} is damaged ({error}); it is not taken.") from error
    if not isinstance(found, dict) or found.pop("crc32", None) != _checksum(found):
        raise DamagedFileError(f"{where} is damaged: its checksum is another; it is not taken.")
    if found.get("version") != FORMAT_VERSION:
        raise ServeError(
            f"{where} has version {found.get('version')} of the format, this package reads {FORMAT_VERSION}; "
            "use the release that wrote it."
        )
    return parse_config(cls, found, where, "publish to another place", ServeError)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
