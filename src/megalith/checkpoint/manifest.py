"""`manifest.json`: what a checkpoint says of itself, and the rules by which it is believed.

    files      name, size and checksum of every other file in the folder; one that is not listed is refused
    values     numbers and texts of the state, by path: `learner/embeddings/num_steps`
    tensors    the tensors of the state that every rank has, by path, all in `dense.safetensors`
    tables     of each table: rows, dim, parts (weight, first, second) and the blocks that hold its rows
    pools      folders of segment files, which hold rows of several tables: what their rows are
    crc32      checksum of all that stands above

A block is some rows of a table in one safetensors file, as tensors `BLOCK/weight`, `BLOCK/first` and
`BLOCK/second`: rows `first` to `first + count` by global id or, where `first` is null, those that the tensor
`BLOCK/ids` names. Stores that hold only some ids of a table, and checkpoints of only what changed, write the
same blocks.

Rectangles of a table that are listed as `sparse` lack the rows that were never trained: a row of them that is
in no block and in no pool has its start value, and zeros as optimizer state. Those with a `chunk` are of rows
that are cut into chunks of so many columns: their blocks have the live columns of rows with equally many
chunks, `BLOCK/utility` with a number for each chunk and `BLOCK/growth` with one for each row, and what is in
no block is zeros. Ids of dynamic tables that have no chunk are in blocks of no columns.

A `delta` has only the rows that are others than in the checkpoint of the step `previous`, and of each table
the ids that have a row no more, in blocks that are `deleted`; tensors and values are all there. Blocks with
`bits` below 32 have `BLOCK/codes` instead of the weight: see `megalith.checkpoint.differential`. A delta is
of version 5, other checkpoints that have chunks of version 4, all others of version 3.

A pool `NAME` is the folder `NAME/` of segment files and the file `NAME.safetensors` that lists them: see
`megalith.checkpoint.pool_files`.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from megalith.core.config import Config, parse_config
from megalith.core.errors import CheckpointError, ConfigError
from megalith.embeddings.row_block import PartRecord
from megalith.embeddings.stores.row_files import PoolLayout, StartRecord

MANIFEST = "manifest.json"
VERSION, CHUNKED_VERSION, DELTA_VERSION = 3, 4, 5
DENSE_FILE = "dense.safetensors"


def _plain_name(name: str) -> str:
    if name in ("", ".", "..", MANIFEST) or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"'{name}' is not the name of a file in the checkpoint's own folder")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]


class FileRecord(Config):
    """Size and checksum of a file."""

    bytes: int = Field(ge=0)
    crc32: int = Field(ge=0)


class BlockRecord(Config):
    """Rows of a table in one file."""

    name: str
    file: FileName
    first: int | None = Field(ge=0)
    count: int = Field(ge=1)
    columns: tuple[int, int]
    sparse: bool = False
    """Whether it belongs to a rectangle that lacks rows."""
    bits: Literal[32, 8, 4] = 32
    """Of a weight; below 32 it is in codes."""
    deleted: bool = False
    """Whether the ids have a row no more: there are only ids."""

    @model_validator(mode="after")
    def _fits(self) -> BlockRecord:
        if self.deleted and self.first is not None:
            raise ValueError("ids that have a row no more are listed")
        return self


class SparseRecord(Config):
    """A rectangle of a table that lacks the rows that were never trained, and how these begin; or chunks."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    start: StartRecord
    chunk: int | None = Field(default=None, ge=1)
    """Columns of a chunk: then what it lacks is zeros."""


class TableRecord(Config):
    """A table, and where its rows are."""

    rows: int = Field(ge=1)
    dim: int = Field(ge=1)
    parts: dict[str, PartRecord]
    blocks: tuple[BlockRecord, ...]
    sparse: tuple[SparseRecord, ...] = ()
    is_raw: bool = False
    """Whether ids are any 64-bit values, which `rows` does not bound."""

    @model_validator(mode="after")
    def _fits(self) -> TableRecord:
        for rectangle in self.sparse:
            (first, last), (left, right) = rectangle.rows, rectangle.columns
            if not (0 <= first <= last <= self.rows and 0 <= left <= right <= self.dim):
                raise ValueError(
                    f"{rectangle.rows} x {rectangle.columns} is not within {self.rows} x {self.dim}"
                )
        if len({rectangle.chunk for rectangle in self.sparse}) > 1:
            raise ValueError("the rows of a table are cut into chunks of one width")
        return self

    @property
    def chunk(self) -> int | None:
        """Columns of a chunk; None where rows are whole."""
        return self.sparse[0].chunk if self.sparse else None


class PoolRecord(Config):
    """The segment files of a pool of one rank."""

    name: FileName
    """Of their folder."""
    layout: PoolLayout
    paths: tuple[str | None, ...]
    """By number in the pool, the table of the checkpoint that a table is a part of; None for a copy of what
    another process has saved."""

    @property
    def list_file(self) -> str:
        """The file that lists the segments."""
        return f"{self.name}.safetensors"

    @model_validator(mode="after")
    def _fits(self) -> PoolRecord:
        if len(self.paths) != len(self.layout.tables):
            raise ValueError("a pool has a path for each of its tables")
        return self


class DeltaRecord(Config):
    """What a checkpoint of changed rows is over."""

    previous: int = Field(ge=0)
    """The step of the checkpoint that the rest is in, which may be a delta in turn."""
    previous_crc32: int = Field(ge=0)
    """Checksum of that checkpoint's manifest: another one of the same step does not fit."""
    base: int = Field(ge=0)
    """The step of the whole checkpoint beneath all."""
    bits: Literal[32, 8, 4] = 32
    """Of the weights of changed rows."""


class Manifest(Config):
    """The content of `manifest.json`."""

    format: Literal["megalith-checkpoint"] = "megalith-checkpoint"
    version: int = VERSION
    kind: Literal["full", "delta"] = "full"
    step: int = Field(ge=0)
    ranks: int = Field(ge=1)
    about: dict[str, Any]
    """What the run wants to be known without loading: samples, the best evaluation so far."""
    values: dict[str, Any]
    tensors: tuple[str, ...]
    tables: dict[str, TableRecord]
    pools: tuple[PoolRecord, ...] = ()
    files: dict[FileName, FileRecord]
    delta: DeltaRecord | None = None
    """Of a delta only."""

    @model_validator(mode="after")
    def _fits(self) -> Manifest:
        if (self.kind == "delta") != (self.delta is not None):
            raise ValueError("a delta, and nothing else, says what it is over")
        if self.delta is not None and not self.delta.base <= self.delta.previous < self.step:
            raise ValueError("a delta is over an earlier step")
        if self.delta is None and any(
            b.deleted or b.bits < 32 for t in self.tables.values() for b in t.blocks
        ):
            raise ValueError("a whole checkpoint has exact rows and no deleted ones")
        return self

    def lists(self, pool: PoolRecord) -> bool:
        """Whether all that a pool gives the checkpoint are rectangles of tables that lack rows."""
        windows = {
            (path, rectangle.rows, rectangle.columns)
            for path, table in self.tables.items()
            for rectangle in table.sparse
        }
        return all(
            path is None or (path, window.rows, window.columns) in windows
            for path, window in zip(pool.paths, pool.layout.tables, strict=True)
        )


def write_manifest(folder: Path, manifest: Manifest) -> int:
    """Writes the manifest with a checksum of its content, and returns that."""
    content = manifest.model_dump(mode="json")
    if content["delta"] is None:
        # As releases wrote it that knew of no deltas, and read it.
        del content["delta"]
    for block in (block for table in content["tables"].values() for block in table["blocks"]):
        if block["bits"] == 32:
            del block["bits"]
        if not block["deleted"]:
            del block["deleted"]
    for table in content["tables"].values():
        for rectangle in table["sparse"]:
            if rectangle["chunk"] is None:
                # As releases wrote it that knew of no chunks, and read it.
                del rectangle["chunk"]
            else:
                content["version"] = CHUNKED_VERSION
    if manifest.delta is not None:
        content["version"] = DELTA_VERSION
    checksum = _checksum(content)
    text = json.dumps({**content, "crc32": checksum}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return checksum


def read_manifest(folder: Path, step: int | None = None, fix: str = "use another checkpoint") -> Manifest:
    """The manifest of a checkpoint, checked against the folder: the step that it is named after, the files
    that it lists and no others. `fix` ends the sentence about a damaged one."""
    path = folder / MANIFEST
    damaged = f"Checkpoint file {path} is damaged; {fix}."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint ({MANIFEST} is missing); {fix}.") from error
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(damaged) from error
    if not isinstance(content, dict):
        raise CheckpointError(damaged)
    version = content.get("version")
    if version not in (VERSION, CHUNKED_VERSION, DELTA_VERSION):
        raise CheckpointError(
            f"{folder} has checkpoint version {version}, this package reads {VERSION} to {DELTA_VERSION}; "
            "use the release that wrote it."
        )
    checksum = content.pop("crc32", None)
    if checksum != _checksum(content):
        raise CheckpointError(damaged)
    try:
        manifest = parse_config(Manifest, content, f"Checkpoint file {path}")
    except ConfigError as error:
        raise CheckpointError(f"{str(error).rstrip('.')}; {fix}.") from error
    if step is not None and manifest.step != step:
        raise CheckpointError(
            f"{folder} holds step {manifest.step}, not the one that it is named after; give it back its name "
            f"or {fix}."
        )
    listed = {MANIFEST, *manifest.files, *(pool.name for pool in manifest.pools)}
    for entry in sorted(folder.iterdir()):
        if entry.name not in listed:
            raise CheckpointError(
                f"{entry} is not listed in the checkpoint's {MANIFEST}; remove it or {fix}."
            )
    named = {block.file for table in manifest.tables.values() for block in table.blocks}
    named |= {pool.list_file for pool in manifest.pools}
    if not named | {DENSE_FILE} <= set(manifest.files) or not all(map(manifest.lists, manifest.pools)):
        raise CheckpointError(damaged)
    return manifest


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
