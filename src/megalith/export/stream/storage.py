"""`StreamStorage`: the files of a stream, in a directory or in an object store that pyarrow knows.

    storage = StreamStorage.of("live/clicks")          # or s3://bucket/clicks?region=..., gs://..., file:///...
    storage.write("versions/0000000001.json", content) # seen whole or not at all
    storage.list("versions")                           # {"0000000001.json": bytes}

On a disk a file is written beside its name, forced to disk and renamed. Object stores show an object when all
of it is there. What cannot be reached is a StorageError of one sentence.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as arrow_fs

from megalith.core.errors import StorageError, without_controls
from megalith.core.files import new_file, remove_partials, write_atomic
from megalith.data.places import file_system

_PIECE_BYTES = 4 << 20


class MissingFileError(StorageError):
    """A file of a stream is not there: it never came, or was removed since it was listed."""


class StreamStorage:
    """Files by name within one place; every method may be called from any thread."""

    def __init__(self, system: arrow_fs.FileSystem, root: str, uri: str) -> None:
        """`uri` is what sentences name."""
        self._system, self._root, self.uri = system, root.rstrip("/"), uri
        self._local = Path(root) if isinstance(system, arrow_fs.LocalFileSystem) else None

    @staticmethod
    def of(uri: str) -> StreamStorage:
        """The place that a URI, or a path, names; nothing is read or written yet."""
        if "://" not in uri:
            return StreamStorage(arrow_fs.LocalFileSystem(), str(Path(uri).expanduser().absolute()), uri)
        system, root = file_system(uri)
        return StreamStorage(system, root, without_controls(re.sub(r"\?[a-z_]+=.*", "", uri)))

    def where(self, name: str) -> str:
        """What a sentence calls a file."""
        return f"{self.uri.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """All of a file; MissingFileError where it is not there."""
        with self._failures(name, "read"), self._system.open_input_stream(self._path(name)) as file:
            content: bytes = file.read()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file; whoever reads finds the old one or the new one."""
        if self._local is not None:
            write_atomic(self._local / name, content)
            return
        with self._failures(name, "written"), self._writing(name) as file:
            file.write(content)

    def upload(self, path: Path, name: str) -> None:
        """Copies a file of this machine to the stream."""
        if self._local is not None:
            with new_file(self._local / name) as target:
                shutil.copyfile(path, target)
            return
        with self._failures(name, "written"), path.open("rb") as source, self._writing(name) as file:
            shutil.copyfileobj(source, file, _PIECE_BYTES)

    def download(self, name: str, path: Path) -> None:
        """Copies a file of the stream to this machine."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._failures(name, "read"),
            self._system.open_input_stream(self._path(name)) as file,
            path.open("wb") as target,
        ):
            while piece := file.read(_PIECE_BYTES):
                target.write(piece)

    def list(self, folder: str) -> dict[str, int]:
        """Files in a folder and below, by their path within, and their bytes; none where it is not there."""
        root = self._path(folder)
        chosen = arrow_fs.FileSelector(root, allow_not_found=True, recursive=True)
        with self._failures(folder, "listed"):
            found = self._system.get_file_info(chosen)
        prefix = len(root) + 1
        names = {info.path[prefix:]: int(info.size) for info in found if info.type == arrow_fs.FileType.File}
        # What a killed writer left, or one is writing now.
        return {name: size for name, size in names.items() if not Path(name).name.startswith(".")}

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        try:
            with self._failures(name, "removed"):
                self._system.delete_file(self._path(name))
        except MissingFileError:
            return

    def remove_folder(self, name: str) -> None:
        """Removes a folder and what is in it, if it is there."""
        with self._failures(name, "removed"):
            self._system.delete_dir_contents(self._path(name), missing_dir_ok=True)
        try:
            with self._failures(name, "removed"):
                self._system.delete_dir(self._path(name))
        except MissingFileError:
            return

    def clean(self, *folders: str) -> None:
        """Clears what killed writers left under temporary names."""
        for folder in folders:
            if self._local is not None and (self._local / folder).is_dir():
                remove_partials(self._local / folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _writing(self, name: str) -> Iterator[Any]:
        path = self._path(name)
        # Disks behind a file system that is not the plain one want the folder; object stores do not mind.
        self._system.create_dir(path.rpartition("/")[0], recursive=True)
        # An error in the block leaves the object unfinished: most stores drop it.
        with self._system.open_output_stream(path) as file:
            yield file

    @contextmanager
    def _failures(self, name: str, done: str) -> Iterator[None]:
        where = without_controls(self.where(name))
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(f"{where} is not there; was it removed?") from error
        except (OSError, pa.ArrowException, io.UnsupportedOperation) as error:
            raise StorageError(
                f"{where} cannot be {done} ({_reason(error)}); check the address, the network and the rights."
            ) from error


def _reason(error: BaseException) -> str:
    """The first line of what a library says."""
    lines = str(error).strip().splitlines()
    return without_controls(lines[0] if lines else type(error).__name__).rstrip(".")
