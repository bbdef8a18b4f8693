"""What a run leaves behind when it could not close its servers: running programs, a shared memory segment, a folder.

Programs are recognised by pid and moment of start (`process.py`). Postgres keeps one small System V segment, which
outlives every process; a machine has room for a few thousand, so those of removed data folders are removed as well.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from statecache.testing.process import identity, kill_tree

_SEGMENTS = Path("/proc/sysvipc/shm")
_IPC_RMID = 0


def clear(folder: Path) -> bool:
    """End what still runs in a throwaway folder, remove it, and return whether it is gone."""
    kill_recorded(folder)
    for postmaster_file in folder.glob("*/data/postmaster.pid"):
        remove_segment(postmaster_file)
    for _ in range(3):  # something that is just ending may still add a file
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return True
    return False


def kill_recorded(folder: Path) -> None:
    """Kill the programs that an earlier run started in this folder and did not end."""
    for pid_file in folder.glob("*.pid"):
        with suppress(OSError):
            with suppress(ValueError):  # a crash of the machine tore it, and ended whatever ran
                pid, started = pid_file.read_text().split()
                if identity(int(pid)) == started:
                    kill_tree(int(pid))
            pid_file.unlink()


def remove_segment(postmaster_file: Path) -> None:
    """Remove the shared memory of a Postgres that was killed, if nobody is attached to it."""
    with suppress(OSError, ValueError, IndexError):
        key, segment = (int(word) for word in postmaster_file.read_text().splitlines()[6].split())
        if _is_abandoned(key, segment):
            import ctypes

            ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)


def _is_abandoned(key: int, segment: int) -> bool:
    for line in _SEGMENTS.read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1]) == segment:
            return int(words[0]) == key and int(words[6]) == 0
    return False
