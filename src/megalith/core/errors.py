"""The error tree.

    MegalithError            one sentence: what is wrong, where (file, line or key), and the fix
    ├── ConfigError          a recipe, an override or an argument
    ├── DataError            input data: a file, a line, a value, an index
    ├── PlanError            a plan that does not fit
    ├── StorageError         a disk or file system that refuses
    ├── CheckpointError      a checkpoint that is missing, damaged or of another shape
    ├── ServeError           a request or an exported model that cannot be served
    ├── QualityError         a frozen model that loses more than its budget allows
    ├── BoundError           a lower bound that does not hold: a defect of Megalith, not of what it was given
    └── NativeError          the native core could not do what it was asked to
        └── OutOfMemoryError for want of memory; the sentence says what that leaves behind

The command line prints the sentence and exits with 2; `--debug` shows the traceback.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MegalithError(Exception):
    """Something the user can put right; its text is one sentence that says how."""


class ConfigError(MegalithError):
    """A recipe, an override or an argument is wrong."""


class DataError(MegalithError):
    """Input data cannot be read as it stands."""


class PlanError(MegalithError):
    """No placement satisfies the constraints."""


class StorageError(MegalithError):
    """A disk or file system refused a write."""


class CacheFullError(StorageError):
    """Rows of batches under way leave no room in a cache; when one of them is released there may be."""


class CheckpointError(MegalithError):
    """A checkpoint is missing, damaged or belongs to another model."""


class ServeError(MegalithError):
    """A request or an exported model cannot be served."""


class QualityError(MegalithError):
    """A frozen model loses more of the trained one's quality than its budget allows."""


class BoundError(MegalithError):
    """A lower bound is above a value that was found: a defect of Megalith that makes its gaps worthless."""


class NativeError(MegalithError):
    """The native core could not do what it was asked to."""


class OutOfMemoryError(NativeError):
    """The native core asked for memory and got none."""


def nearest(name: str, choices: list[str] | tuple[str, ...]) -> str:
    """The tail of a sentence that offers the nearest valid name, or all of them when none is near.

    >>> nearest("lerning_rate", ["learning_rate", "momentum"])
    "did you mean 'learning_rate'?"
    """
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "valid names: " + ", ".join(choices) + "."


def sentence_of(error: BaseException) -> str | None:
    """What to say of an error; None for what only we can put right, whose traceback is shown."""
    if isinstance(error, MegalithError):
        return without_controls(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        # Commands name the file and the fix themselves; this is for the odd path that none of them met.
        return without_controls(f"{os.fsdecode(error.filename)}: {error.strerror}; check the path.")
    if isinstance(error, OSError) and error.errno in _FULL:
        return "Standard output cannot be written because its disk is full; free space there."
    if isinstance(error, UnicodeEncodeError):
        # Some libraries below us take no other names.
        return f"The name {without_controls(str(error.object))} is not UTF-8; choose another."
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "The memory of this machine does not suffice; make the model, its tables or the batch smaller."
    return None


def without_controls(text: str, keep: str = "") -> str:
    """`text` with control characters written out, so that a name which holds some can neither break a
    sentence into lines nor move the cursor.

    >>> without_controls("a\\nb")
    'a\\\\nb'
    """
    return "".join(
        character if character.isprintable() or character in keep else _written_out(character)
        for character in text
    )


def _written_out(character: str) -> str:
    # Spaces of other scripts are not "printable", and stay; a byte that is no UTF-8 is shown as one.
    if character.isspace() and character not in "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029":
        return character
    if 0xDC80 <= ord(character) <= 0xDCFF:
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns a failing write into a StorageError that names the path and the fix. An error that names a file
    elsewhere, such as one that is being read, is not about `path` and stays what it is."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL or any(os.strerror(number) in str(error) for number in _FULL)
        if full:
            raise StorageError(
                f"The disk is full (or a quota or file size limit is reached) while writing {path}; free "
                "space there or choose another folder."
            ) from error
        if error.errno is None or not _concerns(error.filename, path):
            raise
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(
                f"No permission to write {path}; choose a folder you own or change its permissions."
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise StorageError(
                f"Cannot write {path} because another file of that name stands in the way; move it or choose "
                "another path."
            ) from error
        raise StorageError(f"Cannot write {path} ({error.strerror}); choose another path.") from error


def _concerns(filename: object, path: Path) -> bool:
    """Whether an error about `filename` is one about writing `path`: that, a folder above it, a file below
    it, or the temporary name beside it under which it is made."""
    if not isinstance(filename, (str, bytes, os.PathLike)):
        return True
    named, target = Path(os.path.abspath(os.fsdecode(filename))), Path(os.path.abspath(path))  # noqa: PTH100
    if target.is_relative_to(named) or named.is_relative_to(target):
        return True
    beside = named.relative_to(target.parent).parts if named.is_relative_to(target.parent) else ()
    return bool(beside) and beside[0].startswith(f".{target.name}.partial-")
