"""Writes that are seen whole or not at all: a temporary name beside the target, fsync, rename. Reads that
end in one sentence, whatever has become of the file."""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError, MegalithError, StorageError, storage_errors

_PARTIAL = ".partial-"
MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
}

Failure = type[MegalithError]


def write_atomic(path: Path, content: bytes | str) -> None:
    """Writes a small file so that a reader, or a kill at any instant, finds the old one or the new one.

    A device or a pipe, such as /dev/stdout, is written to and never replaced.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    partial = _partial_name(path)
    with storage_errors(path):
        if _is_special(path):
            append(path, data)
            return
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


def append(path: Path, content: bytes) -> None:
    """Adds to the end of a file, which is made if need be. Nothing stays in a buffer, so a full disk is met
    here and not once more when the file is closed."""
    left = memoryview(content)
    with storage_errors(path), path.open("ab", buffering=0) as file:
        while left:
            left = left[file.write(left) :]


def check_target(path: Path) -> None:
    """Refuses a file that cannot be written, before the work whose result is to go there."""
    with storage_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if _is_special(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial_name(path)
        partial.touch()
        partial.unlink()


def read_text(path: Path, *, fix: str, missing: str | None = None, error: Failure = DataError) -> str:
    """The text of a file. `fix` says what to do about a damaged one, `missing` about one that is not there.

    >>> read_text(Path("nothing"), fix="regenerate it")
    Traceback (most recent call last):
    megalith.core.errors.DataError: nothing does not exist; regenerate it.
    """
    try:
        if path.is_char_device():
            # Such as /dev/zero, which has no end.
            raise error(f"{path} is a device, not a file; {fix}.")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise error(f"{path} does not exist; {missing or fix}.") from problem
    except IsADirectoryError as problem:
        raise error(f"{path} is a folder, not a file; {fix}.") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text; {fix}.") from problem
    except PermissionError as problem:
        raise error(f"No permission to read {path}; change its permissions.") from problem
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror}); check the path and the disk.") from problem
    except ValueError as problem:
        raise error(f"{str(path)!r} is no path ({problem}); check it.") from problem


def read_json_object(
    path: Path, *, fix: str, missing: str | None = None, error: Failure = DataError
) -> dict[str, Any]:
    """The JSON object in a file, or one sentence that names the file and says `fix`."""
    text = read_text(path, fix=fix, missing=missing, error=error)
    if not text.strip():
        raise error(f"{path} is empty; {fix}.")
    try:
        content = parse_json(text)
    except ValueError as problem:
        raise error(f"{path} is not JSON ({problem}); {fix}.") from problem
    if not isinstance(content, dict):
        raise error(f"{path} holds {_KINDS[type(content)]} instead of an object; {fix}.")
    return content


def parse_json(text: str) -> Any:
    """The value of a JSON text; a ValueError says what is wrong with it, too deep a nesting included."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where}: {error.msg[:1].lower()}{error.msg[1:]}") from error
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not level:
            return content
    raise ValueError(_TOO_DEEP)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file, one a line, none if it is missing; a last line that a kill cut short is
    passed over."""
    if not path.exists():
        return []
    entries = []
    lines = read_text(path, fix="delete it").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number} is not JSON; delete the line.") from error
        if not isinstance(entry, dict):
            raise DataError(
                f"{path}, line {number} holds {_KINDS[type(entry)]} instead of an object; delete the line."
            )
        entries.append(entry)
    return entries


@contextmanager
def new_folder(
    path: Path, overwrite: bool = False, sync: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Yields an empty folder to fill; it takes the name `path` only if the block ends without an error.

    With `overwrite` an existing folder is replaced at that moment, and kept if the block fails. `sync` forces
    its files to disk; without it, all of them are.
    """
    with storage_errors(path):
        if path.exists() and not overwrite:
            raise StorageError(f"{path} exists already; choose another folder or pass --overwrite.")
        if path.exists() and not path.is_dir():
            raise StorageError(f"{path} is a file, which no folder replaces; move it or choose another path.")
        partial = _partial_name(path)
        partial.mkdir(parents=True)
        try:
            yield partial
            (sync or sync_tree)(partial)
            if path.exists():
                _exchange(partial, path)
                shutil.rmtree(partial)
            else:
                partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a name to write a large file under, which becomes `path` if the block ends without an error."""
    partial = _partial_name(path)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            sync_file(partial)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Removes a folder so that it is there whole or not at all: it loses its name first."""
    partial = _partial_name(path)
    with storage_errors(path):
        path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


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
            sync_file(path)
        else:
            sync_folder(path)
    sync_folder(folder)


def sync_file(path: Path) -> None:
    """Forces the content of a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Forces a rename inside `folder` to disk, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(first: Path, second: Path) -> None:
    """Swaps two names in one step where the system can (Linux), so that `second` exists at every instant."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if libc.renameat2(here, os.fsencode(first), here, os.fsencode(second), swap) == 0:
            return
    aside = _partial_name(second)
    second.rename(aside)
    first.rename(second)
    aside.rename(first)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _partial_name(path: Path) -> Path:
    return path.parent / f".{path.name}{_PARTIAL}{uuid.uuid4().hex[:8]}"
