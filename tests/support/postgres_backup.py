"""Postgres' data folder, kept and put back."""

from __future__ import annotations

import shutil
from pathlib import Path

from statecache.testing.embedded import Servers


class Backup:
    """A copy of Postgres' data folder, taken when this is made."""

    def __init__(self, tiers: Servers, folder: Path, name: str = "backup") -> None:
        self._tiers = tiers
        self._data = tiers.folder / "postgres" / "data"
        self._copy = folder / name
        tiers.stop("postgres")
        shutil.copytree(self._data, self._copy, copy_function=_copy)
        tiers.restart("postgres")

    def put_back(self) -> None:
        """Restore the copy."""
        self._tiers.stop("postgres")
        owner = self._data.stat()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data, copy_function=_copy)
        for path in (self._data, *self._data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        self._tiers.restart("postgres")


def _copy(source: str, target: str) -> str:
    return shutil.copy2(source, target, follow_symlinks=False)
