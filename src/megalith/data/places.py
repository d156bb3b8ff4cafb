"""Where data is: one file, a folder, or a pattern such as logs/day-*.csv, on disks and in object stores.

Object stores are those of pyarrow: `s3://BUCKET/FOLDER`, `gs://...`, `file:///...`. Credentials come from the
environment as every tool for the store takes them (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...), and so do the region
and the endpoint of another store than Amazon's (AWS_REGION, AWS_ENDPOINT_URL), unless the place has them:
`s3://logs/day?endpoint_override=store:9000&scheme=http`. Credentials in a place are refused: runs keep it.

Files are listed in the order of their names. In a folder those that begin with a dot or an underscore, or are
still being written (.tmp, .partial), do not count: who adds a file renames it into place.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from megalith.core.errors import ConfigError, DataError

_SCHEME = re.compile(r"^([a-z][a-z0-9+]+):/+")
_UNFINISHED = (".tmp", ".partial")
_COMPRESSED = (".gz", ".zst", ".bz2")
_PATTERN = re.compile(r"[*?\[]")
_S3_KEYS = ("endpoint_override", "region", "scheme")


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
    filesystem, path, name_of = _located(text)
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
    files = [RawFile(name_of(info.path), info.size, info.mtime_ns or 0) for info in found]
    for file in files:
        if file.name.endswith(_COMPRESSED):
            raise ConfigError(
                f"{file.name} is compressed, so that its middle cannot be read by itself; decompress it, or "
                "make a data set of it with `megalith data prepare`."
            )
    return sorted(files)


def file_system(place: Path | str) -> tuple[fs.FileSystem, str]:
    """The file system of a place, and its path there; whoever writes takes places as whoever reads."""
    filesystem, path, _ = _located(place_text(place))
    return filesystem, path


def has_file(folder: Path | str, name: str) -> bool:
    """Whether a folder holds a file of that name."""
    text = place_text(folder)
    filesystem, path, _ = _located(text)
    with _sentences(text):
        return bool(filesystem.get_file_info(f"{path}/{name}").type == fs.FileType.File)


@contextmanager
def open_file(name: Path | str) -> Iterator[pa.NativeFile]:
    """A file, to be read from any place in it; failures name it."""
    text = place_text(name)
    filesystem, path, _ = _located(text)
    with _sentences(text), filesystem.open_input_file(path) as file:
        yield file


def open_parquet(name: Path | str, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A Parquet file on a disk or in a store, whose pages are checked as they are read."""
    if not is_remote(name):
        return pq.ParquetFile(name, metadata=metadata, page_checksum_verification=True)
    filesystem, path, _ = _located(place_text(name))
    # A request a row group, not one a column.
    options = {"metadata": metadata, "page_checksum_verification": True, "pre_buffer": True}
    return pq.ParquetFile(filesystem.open_input_file(path), **options)


def copy_here(place: Path | str, names: tuple[str, ...], target: Path) -> None:
    """Copies files of a place, or those of folders in it, into a folder here; leaves out what is missing."""
    text = place_text(place)
    filesystem, path, _ = _located(text)
    with _sentences(text):
        for name in names:
            info = filesystem.get_file_info(f"{path}/{name}")
            inner = [info]
            if info.type == fs.FileType.Directory:
                inner = filesystem.get_file_info(fs.FileSelector(info.path))
            for each in (each for each in inner if each.type == fs.FileType.File):
                out = target / PurePosixPath(each.path).relative_to(path)
                out.parent.mkdir(parents=True, exist_ok=True)
                with filesystem.open_input_stream(each.path) as source, out.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


class _Located(NamedTuple):
    filesystem: fs.FileSystem
    path: str
    prefix: str
    suffix: str

    def name_of(self, path: str) -> str:
        """How a path of the file system is written."""
        return f"{self.prefix}{path}{self.suffix}"


def _located(text: str) -> tuple[fs.FileSystem, str, Callable[[str], str]]:
    """The file system of a place, its path there, and what a path there is written as."""
    match = _SCHEME.match(text)
    if match is None or match[1] == "file":
        local = text if match is None else "/" + text[match.end() :]
        found = _Located(fs.LocalFileSystem(), local.rstrip("/") or "/", "", "")
    else:
        scheme, rest = match[1], text[match.end() :]
        # A pattern may hold a question mark too: keys of a store are a name, = and a value.
        rest, options = (*re.split(r"\?(?=[a-z_]+=)", rest, maxsplit=1), "")[:2]
        path = rest.rstrip("/")
        suffix = f"?{options}" if options else ""
        found = _Located(_filesystem(scheme, path.partition("/")[0], options), path, f"{scheme}://", suffix)
    return found.filesystem, found.path, found.name_of


@lru_cache(maxsize=64)
def _filesystem(scheme: str, root: str, options: str) -> fs.FileSystem:
    """The file system of a bucket or host."""
    text = f"{scheme}://{quote(root)}" + (f"?{options}" if options else "")
    keys = {key: values[-1] for key, values in parse_qs(options).items()}
    if "@" in root or any("key" in key or "secret" in key for key in keys):
        raise ConfigError(
            f"{scheme}://{root.rpartition('@')[2]} was given with credentials, which the run would keep; set "
            "them in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    try:
        if scheme == "s3":
            return _s3(keys)
        filesystem, _ = fs.FileSystem.from_uri(
            f"{scheme}://{quote(root)}" + (f"?{options}" if options else "")
        )
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{text} is no place that can be read ({reason}); check it.") from error
    return filesystem


def _s3(keys: dict[str, str]) -> fs.FileSystem:
    unknown = next((key for key in keys if key not in _S3_KEYS), None)
    if unknown is not None:
        raise ValueError(f"there is no key {unknown}, but {', '.join(_S3_KEYS)}")
    given = dict(keys)
    # pyarrow looks for these in no version alike.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_override" not in given:
        parts = urlsplit(endpoint)
        given |= {"scheme": parts.scheme or "https", "endpoint_override": parts.netloc or endpoint}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        given.setdefault("region", region)
    return fs.S3FileSystem(**given)


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
