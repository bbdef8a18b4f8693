"""A full disk, met where servers are started or files are written: told in one line, whatever noticed it first.

A copy of a folder tells of every file that it could not write, and a server of one in the middle of its log. What a
person has to know is which disk it is, and how little room is left there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statecache.errors import StateCacheError, Unavailable

FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = tuple(os.strerror(number) for number in FULL)
_MIB = 1 << 20


class NoRoom(StateCacheError):
    """There is not enough room for the servers' data in {folder}: {free_mib:,} of {of_mib:,} MiB are free."""

    folder: str
    free_mib: int
    of_mib: int

    def __init__(self, folder: Path) -> None:
        usage = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
        hint = "Make room there, or give a folder on another disk. Fresh servers take about 40 MiB, and grow with use."
        super().__init__(folder=str(folder), free_mib=usage.free // _MIB, of_mib=usage.total // _MIB, hint=hint)


@contextmanager
def full_disks_told(*folders: Path) -> Iterator[None]:
    """Raise NoRoom, of the fullest of these folders' disks, in the place of whatever shows that one of them is full."""
    try:
        yield
    except (OSError, Unavailable) as error:
        if not is_full(error):
            raise
        raise min(map(NoRoom, folders), key=lambda one: one.free_mib) from error


def is_full(error: OSError | Unavailable) -> bool:
    """Return whether an error, or what a server wrote that did not start, says that there is no room."""
    if isinstance(error, Unavailable):
        return any(words in error.detail for words in _WORDS)
    if isinstance(error, shutil.Error):
        return any(words in str(error.args) for words in _WORDS)
    return error.errno in FULL
