"""Writes that are seen whole or not at all: a temporary name beside the target, fsync, rename."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError, StorageError, storage_errors

_PARTIAL = ".partial-"


def write_atomic(path: Path, content: bytes | str) -> None:
    """Writes a small file so that a reader, or a kill at any instant, finds the old one or the new one."""
    data = content.encode() if isinstance(content, str) else content
    partial = _partial_name(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, none if it is missing; a last line that a kill cut short is passed over."""
    if not path.exists():
        return []
    entries = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number} is not JSON; delete the line.") from error
    return entries


@contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields an empty folder to fill; it takes the name `path` only if the block ends without an error.

    With `overwrite` an existing folder is replaced at that moment, and kept if the block fails.
    """
    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists already; choose another folder or pass --overwrite.")
    partial = _partial_name(path)
    with storage_errors(path):
        partial.mkdir(parents=True)
        try:
            yield partial
            sync_tree(partial)
            if path.exists():
                _exchange(partial, path)
                shutil.rmtree(partial)
            else:
                partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(path.parent)


def remove_partials(folder: Path, name: str | None = None) -> None:
    """Clears what killed writers left in `folder`, of the target `name` or of any."""
    target = "*" if name is None else glob.escape(name)
    for left in folder.glob(f".{target}{_PARTIAL}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Forces a folder's files to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Forces a rename inside `folder` to disk, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step where the system can (Linux), so that `other` is there at every instant."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0:
            return
    aside = _partial_name(other)
    other.rename(aside)
    one.rename(other)
    aside.rename(one)


def _partial_name(path: Path) -> Path:
    return path.parent / f".{path.name}{_PARTIAL}{uuid.uuid4().hex[:8]}"
