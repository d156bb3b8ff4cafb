"""Raw files by name: one file, a folder, or a pattern such as logs/day-*.csv, on disks and in object stores.

Files are listed in the order of their names. In a folder those that begin with a dot or an underscore, or are
still being written (.tmp, .partial), do not count: who adds a file renames it into place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from megalith.core.errors import ConfigError, DataError

_SCHEME = re.compile(r"^([a-z][a-z0-9+]+):/+")
_UNFINISHED = (".tmp", ".partial")
_COMPRESSED = (".gz", ".zst", ".bz2")
_PATTERN = re.compile(r"[*?\[]")


class RawFile(NamedTuple):
    """A file as it was found."""

    name: str
    """A path, or the URI of an object."""
    size: int
    changed: int
    """When it was last written, in nanoseconds since 1970."""


def is_remote(place: Path | str) -> bool:
    """Whether a place is in an object store: `s3://...`, also where a Path has dropped a slash of it."""
    return _SCHEME.match(str(place)) is not None


def place_text(place: Path | str) -> str:
    """A place as it was written, with both slashes of a URI.

    >>> place_text(Path("s3://logs/day-1"))
    's3://logs/day-1'
    """
    return _SCHEME.sub(r"\1://", str(place))


def list_files(place: Path | str) -> list[RawFile]:
    """The file, or those of a folder or pattern that are complete, in the order of their names."""
    text = place_text(place)
    filesystem, path, prefix = _located(text)
    pure = PurePosixPath(path)
    with _sentences(text):
        if _PATTERN.search(pure.name):
            found = _in_folder(filesystem, str(pure.parent))
            found = [info for info in found if fnmatchcase(info.base_name, pure.name)]
        else:
            info = filesystem.get_file_info(path)
            if info.type == fs.FileType.Directory:
                found = _in_folder(filesystem, path)
            elif info.type == fs.FileType.NotFound:
                raise FileNotFoundError
            else:
                found = [info]
    files = [RawFile(prefix + info.path, info.size, info.mtime_ns or 0) for info in found]
    for file in files:
        if file.name.endswith(_COMPRESSED):
            raise ConfigError(
                f"{file.name} is compressed, so that its middle cannot be read by itself; decompress it, or "
                "make a data set of it with `megalith data prepare`."
            )
    return sorted(files)


def has_file(folder: Path | str, name: str) -> bool:
    """Whether a folder holds a file of that name."""
    filesystem, path, _ = _located(place_text(folder))
    return bool(filesystem.get_file_info(f"{path}/{name}").type == fs.FileType.File)


@contextmanager
def open_file(name: str) -> Iterator[pa.NativeFile]:
    """A file, to be read from any place in it; failures name it."""
    filesystem, path, _ = _located(name)
    with _sentences(name), filesystem.open_input_file(path) as file:
        yield file


def _located(text: str) -> tuple[fs.FileSystem, str, str]:
    """The file system of a place, its path there, and what stands before that in a name."""
    if not is_remote(text):
        return fs.LocalFileSystem(), text.rstrip("/") or "/", ""
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{text} is no place that can be read ({reason}); check it.") from error
    return filesystem, path.rstrip("/"), ""


def _in_folder(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    listed = filesystem.get_file_info(fs.FileSelector(folder))
    return [info for info in listed if info.type == fs.FileType.File and _is_complete(info.base_name)]


def _is_complete(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(_UNFINISHED) and ".partial-" not in name


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{name} is a folder; name the files in it.") from error
    except PermissionError as error:
        raise DataError(f"No permission to read {name}; change its permissions.") from error
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise DataError(f"{name} cannot be read ({reason}); check the disk or the network.") from error
