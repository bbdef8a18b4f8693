"""Folders: throwaway ones, the user's own ones, and who can get at them.

A throwaway folder `<temporary>/statecache-xxxx` has a lock file `statecache-xxxx.lock` beside it, which stays locked
while the process that made it lives, and no longer. So every start can tell the folders of the dead from those of the
living, whatever happened to the dead, and clears them up. Names are random: nobody can take them beforehand.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from statecache.errors import ConfigurationError
from statecache.settings import process_environment
from statecache.testing.leftovers import clear
from statecache.testing.process import RunAs

PREFIX = "statecache-"
SOCKET_PATH_BYTES_MAX = 103  # what the smallest of the systems allows
_LONGEST_INSIDE = len("/statecache-12345678/postgres-socket/.s.PGSQL.65535.lock")


def ordinary_user() -> RunAs | None:
    """Return the user to run Postgres as, which refuses to be run by root; None where we are not root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        if nobody.pw_uid != 0:
            return RunAs(uid=nobody.pw_uid, gid=nobody.pw_gid)
    raise ConfigurationError(
        "Postgres refuses to be run by root, and there is no user `nobody` to run it",
        hint="Run this as an ordinary user, or give the URL of a running Postgres.",
    )


def give_to(path: Path, owner: RunAs | None) -> None:
    """Hand a folder and all in it over to `owner`, the folder last."""
    if owner is None:
        return
    for parent, _, files in os.walk(path, topdown=False):
        for name in files:
            os.chown(os.path.join(parent, name), owner.uid, owner.gid, follow_symlinks=False)
        os.chown(parent, owner.uid, owner.gid)


def reachable(path: Path, by: RunAs | None) -> bool:
    """Return whether that user can get at what lies in the folder; the folder need not exist yet."""
    if by is None:
        return True
    for folder in (path, *path.absolute().parents):
        with suppress(FileNotFoundError):
            found = folder.stat()
            bit = stat.S_IXUSR if found.st_uid == by.uid else stat.S_IXGRP if found.st_gid == by.gid else stat.S_IXOTH
            if not found.st_mode & bit:
                return False
    return True


def temporary_folder(run_as: RunAs | None) -> Path:
    """Return the folder to make throwaway ones in, whose paths are short enough for sockets."""
    for candidate in (Path(tempfile.gettempdir()).absolute(), Path("/tmp"), Path("/var/tmp")):  # noqa: S108
        fits = len(os.fsencode(candidate)) + _LONGEST_INSIDE <= SOCKET_PATH_BYTES_MAX
        if fits and candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK) and reachable(candidate, run_as):
            return candidate
    raise ConfigurationError(
        "no temporary folder is writable, reachable for the user that runs Postgres, and short enough for sockets",
        hint="Set TMPDIR to such a folder.",
    )


class Throwaway:
    """A folder that goes when we close it, or when the next start finds us dead."""

    def __init__(self, path: Path, lock_file: Path, lock: int) -> None:
        self.path = path
        self._lock_file = lock_file
        self._lock = lock

    @classmethod
    def create(cls, run_as: RunAs | None) -> Throwaway:
        """Clear up after the dead, then make a folder that `run_as` may pass through but not list."""
        parent = temporary_folder(run_as)
        clear_up(parent)
        while True:
            lock, name = tempfile.mkstemp(prefix=PREFIX, suffix=".lock", dir=parent)
            if _lock_still_named(lock, Path(name)):
                break
            os.close(lock)  # another start took it for a dead one's in the moment before it was locked
        path = Path(name.removesuffix(".lock"))
        path.mkdir(mode=0o700)
        if run_as is not None:
            path.chmod(0o711)
        return cls(path, Path(name), lock)

    def remove(self) -> None:
        """End what still runs in the folder, and remove it."""
        clear(self.path)
        self._lock_file.unlink(missing_ok=True)
        os.close(self._lock)


def clear_up(parent: Path) -> None:
    """Remove the throwaway folders of our user's dead processes, and end what still runs in them."""
    for lock_file in parent.glob(f"{PREFIX}*.lock"):
        with suppress(OSError):
            _clear_if_dead(lock_file)


def _clear_if_dead(lock_file: Path) -> None:
    found = lock_file.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        return
    lock = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        folder = Path(str(lock_file).removesuffix(".lock"))
        if _lock_still_named(lock, lock_file) and clear(folder):
            lock_file.unlink()
    finally:
        os.close(lock)


def _lock_still_named(lock: int, lock_file: Path) -> bool:
    """Take the lock if nobody has it; return whether we have it and the file is still the one of that name."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), lock_file.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


@contextmanager
def locked(lock_file: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock until the block ends, and yield whether it was free to take."""
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(lock, wait=wait)
    finally:
        os.close(lock)


def _lock(lock: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a network folder without locks
            raise
    return True


def user_folder(kind: Literal["data", "cache"]) -> Path | None:
    """Make and return the user's own folder for statecache; None where the user has no usable home.

    Under sudo the home of the environment may still be someone else's: it is left alone.
    """
    for parent in _user_parents(kind):
        folder = parent / "statecache"
        if _is_ours(folder):
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                    return folder
    return None


def _user_parents(kind: Literal["data", "cache"]) -> Iterator[Path]:
    environment = process_environment()
    named = environment.get(f"XDG_{kind.upper()}_HOME", "")
    if os.path.isabs(named):
        yield Path(named)
    homes = [environment.get("HOME", "")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.geteuid()).pw_dir)
    mac = {"data": "Library/Application Support", "cache": "Library/Caches"}
    other = {"data": ".local/share", "cache": ".cache"}
    for home in homes:
        if os.path.isabs(home):
            yield Path(home) / (mac if sys.platform == "darwin" else other)[kind]


def _is_ours(folder: Path) -> bool:
    for existing in (folder, *folder.parents):
        if existing.exists():
            return existing.stat().st_uid in (0, os.geteuid())
    return False
