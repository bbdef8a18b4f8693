"""A disk without room: `statecache dev` says so in one line, with a status of its own, and takes up none of it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.cli.exits import FULL_DISK, status_of
from statecache.disk_space import NoRoom, full_disks_told, is_full
from statecache.errors import PostgresUnavailable, RedisUnavailable
from tests.fixtures.surroundings import short_folder

WAIT_S = 60.0
PRIVATE = ("unshare", "--mount", "sh", "-c")
"""A shell whose mounts nobody else sees, and which go with it."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user who runs Postgres for root can pass into."""
    with tempfile.TemporaryDirectory(prefix="sct", dir=short_folder()) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("size_mib", [30, 39], ids=["while the data are made", "while Postgres starts"])
def test_dev_on_a_full_disk_is_one_line_and_a_status_of_its_own(folder: Path, size_mib: int) -> None:
    mounted = f"mount -t tmpfs -o size={size_mib}m,mode=0711 tmpfs {folder}"
    dev = f"{sys.executable} -m statecache dev --folder {folder}/data --json"
    done = subprocess.run(
        [*PRIVATE, f"{mounted} && {dev}; status=$?; ls {folder}/data/postgres; exit $status"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"statecache: There is not enough room for the servers' data in {folder}/data: ")
    assert "data.new" not in done.stdout


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"), True),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/x"), True),
        (OSError(errno.EACCES, os.strerror(errno.EACCES), "/x"), False),
        (shutil.Error([("/a", "/b", "[Errno 28] No space left on device: '/a' -> '/b'")] * 900), True),
        (shutil.Error([("/a", "/b", "[Errno 13] Permission denied: '/b'")]), False),
        (PostgresUnavailable("start", detail="it wrote: FATAL: could not write: No space left on device"), True),
        (RedisUnavailable("start", detail="it wrote: Address already in use"), False),
    ],
)
def test_what_says_that_a_disk_is_full_is_told_from_the_rest(
    error: OSError | PostgresUnavailable, full: bool, tmp_path: Path
) -> None:
    assert is_full(error) == full
    with pytest.raises(NoRoom if full else type(error)) as caught, full_disks_told(tmp_path / "not made yet"):
        raise error
    assert len(str(caught.value)) < 400 or not full
    assert (status_of(caught.value) == FULL_DISK) == full
