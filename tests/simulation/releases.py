"""Two releases side by side on the same servers, as while a rolling upgrade goes on, or is taken back.

    make chaos PROFILE=releases [ARGS="--release v1.2.0"]

One of the writers and one of the workers run the release before, from a copy of its tree; now and then a process is
killed and started again with the other release. So values, entries and scripts of each are met by the other, under
some of the faults of every chaos.

    swapped    a writer or a worker goes on with the other release
    typed      a value with a new field is updated by the release before, whose type lacks it: the field stays, or the
               update is refused
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from tests.simulation.arena import ROOT, WORKER_LINE, Arena
from tests.simulation.faults import Faults
from tests.simulation.nemesis import KINDS as EVERY_KIND
from tests.simulation.nemesis import Strike

PREVIOUS = "10f8664"
"""The release before: a tag or a commit. One that drops fields which it does not know cannot be helped any more."""
AGENT_S = 30.0
KINDS = {
    "swapped": (8.0, 0.1, 0.5),
    "typed": (1.0, 0.0, 0.0),
    **{
        kind: EVERY_KIND[kind]
        for kind in (
            "worker_kill", "writer_kill", "worker_pause", "redis_kill", "redis_drop_reply", "redis_hold",
            "script_flush", "postgres_kill", "commit_drop_reply", "evict",
        )
    },
}  # fmt: skip


class ReleasesArena(Arena):
    """Writers and workers of two releases; `old` are those that run the one before."""

    release = PREVIOUS
    aside = ("typed/",)

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.old: set[str] = {"w1", WORKER_LINE}
        self.before = self.folder / "release-before"

    @classmethod
    def lacking(cls) -> str:
        """Return what this machine lacks for it; nothing where it has all."""
        if not shutil.which("git"):
            return "there is no git on PATH"
        known = _git("cat-file", "-e", f"{cls.release}^{{commit}}")
        return f"this tree knows no release {cls.release}" if known.returncode else ""

    async def prepare(self, ending: AsyncExitStack) -> None:
        """Lay out the tree of the release before."""
        await asyncio.to_thread(_lay_out, self.release, self.before)

    def tree(self, name: str) -> Path:
        """Return the tree that a process runs: of two workers the older one stays with the release before."""
        if name in self.names:
            return self.before if name in self.old else ROOT
        mixed = [other for other in self.workers if self.ran.get(other) == self.before]
        return ROOT if mixed or WORKER_LINE not in self.old else self.before


class ReleasesFaults(Faults):
    """The faults, and processes that go on with the other release."""

    @property
    def _here(self) -> ReleasesArena:
        return cast("ReleasesArena", self._arena)

    async def _swapped(self, strike: Strike) -> bool:
        here = self._here
        name = (*here.names, WORKER_LINE)[int(strike.pick * (len(here.names) + 1))]
        here.old ^= {name}
        return await (self._worker_kill if name == WORKER_LINE else self._writer_kill)(strike)

    async def _typed(self, strike: Strike) -> bool:
        key = f"typed/{int(strike.pick * 10**9)}"
        told = [await self._agent(tree, what, key) for tree, what in ((ROOT, "set"), (self._here.before, "update"))]
        left = await self._agent(ROOT, "get", key)
        if "extra" not in left and "refused" not in told[1]:
            self.findings.append(f"typed: the release before dropped a field of {key}: {told}, then {left}")
        return True

    async def _agent(self, tree: Path, what: str, key: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "tests/simulation/releases_agent.py"), what, key, cwd=tree,
            env=self._here.environment(WORKER_LINE, tree), stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(AGENT_S):
            said, _ = await process.communicate()
        return said.decode(errors="replace")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False)


def _lay_out(release: str, folder: Path) -> None:
    """Put the tree of a tag or a commit into a new folder."""
    folder.mkdir()
    archive = _git("archive", release)
    if archive.returncode:
        raise RuntimeError(f"there is no release {release}: {archive.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
