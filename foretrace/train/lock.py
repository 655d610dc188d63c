"""One run in a folder at a time: a lock that the operating system takes back when its process ends, however it ends.

The lock is on an open file, not the file's being there: a run that is killed leaves the file behind, but no lock on it.
The file says who holds the lock, for the message that others get. Some network file systems have no locks; there a run
warns and goes on without one.
"""

import errno
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from foretrace.train.checkpoint import CheckpointWarning, said_where

LOCK = ".lock"
HELD = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}  # systems disagree on which of them


class FolderInUseError(OSError):
    """Another run is under way in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the block, no other run can work in the folder, be it of this process or of another one.

    Args:
        folder: The folder, which exists.

    Raises:
        FolderInUseError: A run is under way in it.
        OSError: The folder cannot be written, or its lock is a link to another file.
    """
    path = folder / LOCK
    if path.is_symlink():
        raise OSError(f"`{path}` is a link to another file, which a lock would empty. Remove the link.")
    with said_where(path):
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(number, "r+b", buffering=0) as file:  # closing it gives the lock back
        _take(file, folder)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}".encode())
        yield


def _take(file: BinaryIO, folder: Path) -> None:
    try:
        _lock(file)
    except OSError as error:
        if error.errno in HELD:
            file.seek(0)
            holder = file.read().decode(errors="replace") or "another process"
            raise FolderInUseError(
                f"A run is under way in `{folder}` ({holder}). Wait until it ends, or name another folder."
            ) from None
        said = f"`{folder}` is on a file system without locks ({error.strerror}): see to it that no other run uses it."
        warnings.warn(said, CheckpointWarning, stacklevel=2)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        file.seek(1 << 30)  # what is locked cannot be read: a byte far beyond the text
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
