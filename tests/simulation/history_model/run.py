"""Random histories, played on real servers, and compared with a plain model that keeps every version of every key.

    make history-model SEED=7 [SECONDS=40]

What is done next is drawn from the seed: writes of every kind, deletes, counters and lists, checkpoints of keys and
groups, rollbacks, undos and redos, branches of branches, merges, prunes by hand and by workers, erasures. Beside these
workers are killed in the middle of a flush and of a prune, and clients are cancelled in the middle of a group's
rollback and of an erasure; for a while nothing is flushed; states are evicted, and Redis comes back empty. What depends
on the machine is where a kill strikes, and what was old enough for a policy.

Every few steps some keys are compared, and in the end all: each version, by its number, its position and its moment,
whole groups at one point, ranges, differences, checkpoints, branches, ancestry; and `verify` has to find nothing. What
a policy may let go may be gone, and then the error names what is nearest; what is pinned, young enough, or read by a
branch has to be there.

The last line is the result as JSON. The exit status is 1 where anything differs.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from statecache import Settings
from statecache.clock import monotonic
from tests.simulation.history_model.branches import Branches
from tests.simulation.history_model.compared import Compared
from tests.simulation.history_model.drawing import Drawing, TakenAway
from tests.simulation.history_model.erasures import Erasures
from tests.simulation.history_model.marks import Marks
from tests.simulation.history_model.restores import Restores
from tests.simulation.history_model.servers import HistoryServers, ages
from tests.simulation.history_model.writes import Writes

SECONDS = 40.0
STEPS_MAX = 100_000
COMPARED_EVERY = 12
VERIFIED_EVERY = 60
TOLD_EVERY_S = 5.0
SHOWN_MAX = 20
Say = Callable[[str], object]

WEIGHTS = {
    "set": 30, "edit": 16, "modify": 14, "delete": 5, "recreate": 4, "checkpoint": 7, "rename_checkpoint": 2,
    "unpin": 3, "rollback": 10, "undo": 7, "redo": 4, "walk_to_and_fro": 5, "rollback_group": 7, "walk_group": 5,
    "branch": 7, "branch_group": 2, "merge": 7, "erase": 2, "pause": 2, "flush": 9, "kill_flush": 2, "policy": 2,
    "prune": 4, "kill_prune": 2, "evict": 3, "lose_redis": 1, "latest": 2,
}  # fmt: skip
"""How often each is drawn, in proportion."""


class Result(msgspec.Struct, kw_only=True):
    """The findings of a run; their JSON is the last line that it prints."""

    seed: int
    steps: int = 0
    seconds: float = 0.0
    keys: int = 0
    versions: int = 0
    gone: int = 0
    lost: int = 0
    done: dict[str, int] = {}
    compared: dict[str, int] = {}
    violations: int = 0
    findings: list[str] = []

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.violations else 0


class Run:
    """One run."""

    def __init__(self, settings: Settings, result: Result, say: Say) -> None:
        self._rng = Random(result.seed)
        self._here = HistoryServers(settings)
        self._drawn = Drawing(self._here, self._rng)
        self._writes, restores = Writes(self._drawn), Restores(self._drawn)
        self._verbs = (
            self._writes,
            Marks(self._drawn),
            restores,
            Branches(self._drawn, restores),
            Erasures(self._drawn),
            self,
        )
        self._compared = Compared(self._here, Random(result.seed + 1))
        self._result = result
        self._say = say
        self._done: Counter[str] = Counter()

    async def play(self, *, seconds: float, steps: int) -> None:
        """Play until the time is over, or all steps are done, or something differs."""
        begun = told = monotonic()
        try:
            self._here.set_policy("last", count=None, age=None, history="latest")
            await self._here.flush()
            while self._result.steps < steps and monotonic() - begun < seconds and not self._findings:
                await self._step()
                if monotonic() - told > TOLD_EVERY_S:
                    told = monotonic()
                    versions = sum(map(len, self._here.past.chains.values()))
                    self._say(f"{told - begun:6.1f} s  {self._result.steps} steps, {versions} versions,"
                              f" {sum(self._compared.counts.values())} compared")  # fmt: skip
            if not self._findings:
                await self._ends()
        finally:
            self._tell(monotonic() - begun)
            await self.close()

    async def close(self) -> None:
        """End all that was opened."""
        await self._here.close()

    @property
    def _findings(self) -> list[str]:
        return self._compared.findings

    def verb(self, name: str) -> Callable[[], Awaitable[object]] | None:
        """Return what a name of `WEIGHTS` does."""
        return next((getattr(one, name) for one in self._verbs if hasattr(one, name)), None)

    async def _step(self) -> None:
        self._result.steps += 1
        name = self._rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        verb = self.verb(name)
        assert verb is not None, name
        self._drawn.said = name
        try:
            await verb()
        except TakenAway:
            self._done["taken away"] += 1
        except Exception as error:  # whatever a verb raises that the plain history does not is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._findings.append(f"step {self._result.steps}, {self._drawn.said}: {type(error).__name__}: {error}"
                                  f" ({where.filename.rpartition('/')[2]}:{where.lineno})")  # fmt: skip
            return
        self._done[name] += 1
        self._here.mark()
        if self._result.steps % COMPARED_EVERY == 0:
            await self._compared.some()
        if self._result.steps % VERIFIED_EVERY == 0:
            await self._compared.verified()
        self._found_at()

    def _found_at(self) -> None:
        self._findings[:] = [
            one if one.startswith("step ") else f"step {self._result.steps}, {self._drawn.said}: {one}"
            for one in self._findings
        ]

    async def _ends(self) -> None:
        """Compare all: with what is unflushed, and again when all is flushed."""
        await self._compared.everything()
        await self._here.flush()
        self._here.mark()
        await self._compared.everything()

    def _tell(self, seconds: float) -> None:
        past, result = self._here.past, self._result
        rows = [row for chain in past.chains.values() for row in chain]
        result.seconds, result.keys, result.versions = round(seconds, 1), len(past.chains), len(rows)
        result.gone = sum(not row.kept for row in rows)
        result.done, result.compared = dict(sorted(self._done.items())), dict(sorted(self._compared.counts.items()))
        result.violations, result.findings = len(self._findings), self._findings[:SHOWN_MAX]

    # What befalls the servers.

    async def flush(self) -> None:
        await self._here.flush()

    async def kill_flush(self) -> None:
        moment = self._rng.randrange(1, 9)
        self._drawn.said = f"kill the worker at moment {moment} of a flush"
        self._done["killed flushes"] += await self._here.kill_flush(moment)

    async def policy(self) -> None:
        namespace = self._rng.choice(("runs", "notes", "blobs"))
        count, age = self._rng.choice(((3, None), (6, None), (None, 1.0), (4, 3.0), (None, None)))
        self._drawn.said = f"keep of {namespace} {count} values, {age} s"
        self._here.set_policy(namespace, count=count, age=None if age is None else ages(age))

    async def prune(self) -> None:
        by_worker = self._rng.random() < 0.5
        self._drawn.said = f"prune {'by a worker' if by_worker else 'by hand'}"
        await self._here.prune(by_worker=by_worker)

    async def kill_prune(self) -> None:
        by_worker, moment = self._rng.random() < 0.5, self._rng.randrange(1, 40)
        self._drawn.said = f"kill a prune {'by a worker' if by_worker else 'by hand'} at moment {moment}"
        self._done["killed prunes"] += await self._here.prune(by_worker=by_worker, moment=moment)

    async def evict(self) -> None:
        self._done["evicted"] += self._here.evict()

    async def lose_redis(self) -> None:
        self._drawn.said = "lose Redis"
        self._result.lost += await self._here.lose_redis()

    async def latest(self) -> None:
        """Let Postgres hold only the newest values of what was written in one go."""
        for _ in range(3):
            key = self._rng.choice([key for key in sorted(self._drawn.kinds) if key.startswith("last/")])
            await self._writes.write(key, self._drawn.value(key))
        await self._here.flush()


async def run(settings: Settings, seed: int, *, seconds: float, steps: int = STEPS_MAX, say: Say = print) -> Result:
    """Play one history and return what was found."""
    result = Result(seed=seed)
    await Run(settings, result, say).play(seconds=seconds, steps=steps)
    return result
