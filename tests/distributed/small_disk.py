"""A small file system: a tmpfs in a mount namespace of its own, gone with the process that holds it, whatever
becomes of the tests."""

import ctypes
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$0" && echo mounted && exec cat'


class CannotMountError(Exception):
    """This machine or user may not mount."""


class SmallDisk:
    """A mounted tmpfs. Only processes that `enter` see it under its path; `outside` is where others do."""

    def __init__(self, folder, holder):
        self.folder, self.namespace = folder, holder
        self.outside = Path(f"/proc/{holder}/root") / folder.relative_to("/")

    def resize(self, size):
        """Gives it room for so many bytes in all."""
        options = f"remount,size={size}"
        command = ["nsenter", f"--mount=/proc/{self.namespace}/ns/mnt", "mount", "-o", options, self.folder]
        subprocess.run(command, check=True)


@contextmanager
def small_disk(folder, size):
    """A new file system of `size` bytes at `folder`, until the block is left."""
    folder.mkdir()
    command = ["unshare", "--mount", "sh", "-c", _MOUNT, str(folder), str(size)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        holder = subprocess.Popen(command, text=True, **pipes)
    except FileNotFoundError as error:
        raise CannotMountError(str(error)) from error
    # It ends when its input does: with the block, or with this process.
    with holder:
        if holder.stdout.readline() != "mounted\n":
            raise CannotMountError(holder.stderr.read())
        yield SmallDisk(folder, holder.pid)
        holder.stdin.close()


def enter(namespace):
    """Takes this process into the namespace of a disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{namespace}/ns/mnt").open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNS) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), file.name)


def allocated_bytes(folder):
    """What the files below a folder take of a tmpfs: whole pages."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)
