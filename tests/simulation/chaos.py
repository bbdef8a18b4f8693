"""Real processes under a seeded nemesis: everything is broken for a while, then healed, then every promise is checked.

    make chaos SECONDS=60 SEED=7 PROFILE=roles

Three writers (one of them synchronous) with several sessions each fight for a few keys with every verb; two workers
flush; the nemesis kills, freezes, cuts, squeezes and empties. All faults are drawn from the seed and printed before
anything runs; what they meet depends on the machine.

Promised at the end, beside what the checker proves of the history:

    while it runs     a dirty state has no time to live, and its entry is in the stream
    after the heal    within LIVE_S every shard takes a write at `postgres`, and everything is flushed
    at rest           the end of a chain, the state in Postgres and the state in Redis are the same; so are a key and
                      the key in its document; no worker's row and no ownership is left when the workers have ended

Acknowledgements at `memory` and `disk` hold through everything (Valkey syncs always; `flushall` waits until no writer
has anything under way and all is flushed) but `lost_tail`: there Redis comes back with an older append-only file, and
what was acknowledged below `postgres` from the copy's moment until the gates are open again is counted as lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
import redis

from statecache import AsyncStateCache
from statecache.clock import monotonic
from statecache.errors import StateCacheError
from tests.simulation.arena import Arena, arena
from tests.simulation.evidence import Verdict
from tests.simulation.faults import behind
from tests.simulation.history import Recorder, seen_of
from tests.simulation.judge import LEFT_S, journals, judge, leaks, unexpected
from tests.simulation.nemesis import Strike, schedule
from tests.simulation.profiles import CHAOS, PROFILES, Profile
from tests.simulation.releases import ReleasesArena
from tests.simulation.sampler import Sampler
from tests.simulation.writer import KINDS_FILE

LIVE_S = 30.0
ENDING_S = 150.0
SAMPLE_S = 0.1
PROGRESS_S = 5.0
SHOWN_MAX = 20
SHOWN_LETTERS_MAX = 500

Say = Callable[[str], object]


class Result(msgspec.Struct, kw_only=True):
    """The findings of a run; their JSON is the last line that it prints."""

    seed: int
    seconds: float
    profile: str = "chaos"
    faults: int = 0
    operations: int = 0
    acknowledged: int = 0
    unknown: int = 0
    lost_beyond_tolerance: int = 0
    expired: int = 0
    snapshots: int = 0
    dirty_seen: int = 0
    kinds: dict[str, int] = {}
    violations: int = 0
    sorts: dict[str, int] = {}
    findings: list[str] = []
    journals: str = ""


class Run:
    """One run, from its start to its judgement."""

    def __init__(self, here: Arena, result: Result, say: Say, profile: Profile = CHAOS) -> None:
        self._here = here
        self._result = result
        self._say = say
        self._alone = profile.alone
        self._sampler = Sampler(here.keys, here.watched)
        self._faults = profile.faults(here, self._sampler)
        self._struck: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._active: set[asyncio.Task[None]] = set()
        self._failed: list[BaseException] = []
        self._began = monotonic()
        self._lives = True

    async def chaos(self, strikes: list[Strike], seconds: float, enough: float = inf) -> None:
        """Let the nemesis strike until the time is over, or enough was struck; wait until all its faults have ended."""
        self._began = monotonic()
        self._faults.ends_at = self._began + seconds
        watching = [asyncio.ensure_future(self._sample()), asyncio.ensure_future(self._tell())]
        try:
            for strike in strikes:
                await self._until(strike.at_s)
                if self._elapsed() > seconds or self._struck.total() >= enough:
                    break
                if strike.kind in self._alone:
                    await self._others_over()
                task = asyncio.ensure_future(self._strike(strike))
                self._active.add(task)
                task.add_done_callback(self._over)
                if strike.kind in self._alone:
                    await task
            else:
                await self._until(seconds)
            await self._others_over()
        finally:
            for one in watching:
                one.cancel()
            ended = await asyncio.gather(*watching, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _elapsed(self) -> float:
        return monotonic() - self._began

    async def _until(self, at_s: float) -> None:
        await self._here.while_waiting(max(0.0, at_s - self._elapsed()))

    def _over(self, task: asyncio.Task[None]) -> None:
        self._active.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.append(error)

    async def _others_over(self) -> None:
        """Wait for the faults under way; raise the error of one that failed, as where a server did not come back."""
        while self._active:
            await asyncio.wait(self._active)
        for error in self._failed:
            raise error

    async def _strike(self, strike: Strike) -> None:
        struck = await self._faults.strike(strike)
        (self._struck if struck else self._missed)[strike.kind] += 1
        self._say(f"{self._elapsed():6.2f} s  {strike.kind} {'over' if struck else 'met nothing'}")

    async def _sample(self) -> None:
        while True:
            await self._here.while_waiting(SAMPLE_S)
            with contextlib.suppress(redis.RedisError):
                await asyncio.to_thread(self._look)

    def _look(self) -> None:
        with self._here.redis(seconds=1) as raw:
            self._sampler.look(raw)

    async def _tell(self) -> None:
        while True:
            await self._here.while_waiting(PROGRESS_S)
            self._here.look_after()
            lines = sum(path.read_bytes().count(b"\n") for path in self._here.folder.glob("*.jsonl"))
            self._say(f"{self._elapsed():6.2f} s  {lines} journal lines, {self._struck.total()} faults")

    async def settle(self, kinds: Collection[str] = ()) -> None:
        """Heal, end the writers, and see that the service comes back whole, whatever the last faults left behind."""
        await self._faults.leave(kinds)
        self._say(f"{self._elapsed():6.2f} s  healing")
        await self._here.heal()
        await self._here.end_writers()
        self._lives = self._faults.told.rests = await self._live()
        await self._faults.over()
        await asyncio.to_thread(self._look)
        await self._all_reaped()
        await self._all_ended()
        await self._here.end_workers()

    async def _live(self) -> bool:
        """Write to every shard at `postgres`, and wait for the flush; return whether all was flushed within LIVE_S."""
        begun = monotonic()
        end = begun + LIVE_S
        with Recorder(self._here.folder / "probe.jsonl", "probe") as recorder:
            async with AsyncStateCache(settings=self._here.direct) as cache, asyncio.TaskGroup() as tasks:
                for shard in range(self._here.settings.shards):
                    tasks.create_task(self._probe(cache, recorder, shard, end))
        late = [-1]
        while late and monotonic() < end:
            with contextlib.suppress(redis.RedisError, psycopg.Error):
                late = await behind(self._here)
            await self._here.while_waiting(0.05)
        if late:
            self._found(f"liveness: {LIVE_S:g} s after the last fault shards {late} were not flushed")
        told = "not all flushed" if late else "live and flushed"
        self._say(f"{self._elapsed():6.2f} s  {told} {monotonic() - begun:.2f} s after the heal")
        return not late

    async def _probe(self, cache: AsyncStateCache, recorder: Recorder, shard: int, end: float) -> None:
        number = next(number for number in range(10_000) if self._here.keys.shard(f"probe/{number}") == shard)
        while True:
            sent = recorder.invoke(f"shard{shard}", "set", [f"probe/{number}"], kind="write", level="postgres")
            try:
                state = await cache.set(sent.keys[0], {"by": sent.tag}, durability="postgres")
            except StateCacheError as error:
                recorder.unknown(sent, error)
                if monotonic() > end:
                    self._found(f"liveness: {LIVE_S:g} s after the last fault shard {shard} takes no write: {error}")
                    return
                await self._here.while_waiting(0.05)
            else:
                recorder.ok(sent, written=[seen_of(state)])
                return

    async def _all_reaped(self) -> None:
        """Wait until the rows of killed workers are gone and every shard has a living owner.

        A worker that has just been started has no row either, and handles no signals yet.
        """
        end = monotonic() + LIVE_S
        schema = self._here.settings.postgres_schema
        query = f"""
            SELECT (SELECT count(*) FROM {schema}.worker),
                   (SELECT count(*) FROM {schema}.shard WHERE owner IN (SELECT id FROM {schema}.worker))
        """

        def look() -> tuple[Any, ...] | None:
            with self._here.postgres() as connection:
                return connection.execute(query.encode()).fetchone()

        wanted = (self._here.workers_max, self._here.settings.shards)
        while (counted := await asyncio.to_thread(look)) != wanted or not self._here.all_are_ready:
            if monotonic() > end:
                ready = "" if self._here.all_are_ready else "; a worker is not ready"
                self._found(f"leak: (worker rows, owned shards) are {counted}, not {wanted}{ready}")
                return
            await self._here.while_waiting(0.1)

    async def _all_ended(self) -> None:
        """Wait until workers have deleted what ends; what they leave behind is found later, by when it ended."""
        schema, end = self._here.settings.postgres_schema, monotonic() + LEFT_S + 5
        query = f"SELECT count(*) FROM {schema}.state WHERE op = 'set' AND encoding LIKE '% until %'"

        def look() -> Any:
            with self._here.postgres() as connection:
                return connection.execute(query.encode()).fetchall()[0][0]

        while await asyncio.to_thread(look) and monotonic() < end:
            await self._here.while_waiting(0.1)

    def judged(self) -> Verdict:
        """Check everything that can be checked at rest, fill in the result, and return the verdict."""
        here, result = self._here, self._result
        operations = journals(here.folder)
        verdict, wrong = Verdict(), [] if self._lives else ["at rest: it is not, so what rests was not judged"]
        if self._lives:
            verdict, wrong = judge(here, operations, self._faults.told.losses)
            wrong += leaks(here)
        strange = [f"unexpected: {line}" for line in unexpected(operations, here.expected_errors)]
        crashes = [f"crash: {line}" for line in here.crashes]
        for finding in (*self._sampler.findings, *wrong, *crashes, *strange, *self._faults.findings):
            self._found(finding)
        for violation in (*verdict.violations, *self._faults.judged(operations, verdict)):
            self._found(str(violation))
        result.faults = self._struck.total()
        result.kinds = dict(sorted(self._struck.items()))
        result.operations = len(operations)
        result.acknowledged = sum(one.outcome == "ok" for one in operations)
        result.unknown = sum(one.outcome == "unknown" for one in operations)
        result.lost_beyond_tolerance, result.expired = len(verdict.lost), verdict.expired
        result.snapshots, result.dirty_seen = self._sampler.snapshots, self._sampler.dirty
        self._table(Counter((one.verb, one.outcome) for one in operations))
        return verdict

    def _found(self, finding: str) -> None:
        self._result.violations += 1
        sort = finding.partition(":")[0]
        sort = sort if sort.replace(" ", "").isalpha() else "at rest"
        self._result.sorts[sort] = self._result.sorts.get(sort, 0) + 1
        if len(self._result.findings) < SHOWN_MAX:
            self._result.findings.append(finding[:SHOWN_LETTERS_MAX])

    def _table(self, ended: Counter[tuple[str, str]]) -> None:
        self._say("\nfault                  struck  missed")
        for kind in sorted(self._struck | self._missed):
            self._say(f"{kind:<22} {self._struck[kind]:>6}  {self._missed[kind]:>6}")
        self._say("\nverb                 ok    fail  unknown")
        for verb in sorted({verb for verb, _ in ended}):
            counts = [ended[verb, outcome] for outcome in ("ok", "fail", "unknown")]
            self._say(f"{verb:<16} {counts[0]:>6}  {counts[1]:>6}  {counts[2]:>7}")


async def run(
    seed: int,
    seconds: float,
    folder: Path,
    say: Say,
    kinds: Sequence[str] = (),
    profile: Profile = CHAOS,
    *,
    enough: float = inf,
) -> Result:
    """Do one run in this folder, within `seconds` and ENDING_S, with these kinds of faults or with all.

    It ends early once `enough` faults were struck.
    """
    kinds = kinds or tuple(profile.table)
    strikes = schedule(seed, seconds, [kind for kind in kinds if profile.table[kind][0]], profile.table)
    result = Result(seed=seed, seconds=seconds, profile=profile.name)
    say(f"profile {profile.name}, seed {seed}, {seconds:g} s, {len(strikes)} faults planned")
    for strike in strikes:
        say(str(strike))
    (folder / KINDS_FILE).write_text(" ".join(kinds))
    async with asyncio.timeout(seconds + ENDING_S), arena(folder, seed, profile.arena) as here:
        one = Run(here, result, say, profile)
        try:
            await one.chaos(strikes, seconds, enough)
            await one.settle(kinds)
            one.judged()
        finally:
            here.keep_logs()
    return result


def chaos(seed: int, seconds: float, say: Say, kinds: Sequence[str] = (), profile: Profile = CHAOS) -> Result:
    """Do one run in a folder of its own, which stays where there is something to look at."""
    folder = Path(tempfile.mkdtemp(prefix="statecache-chaos-"))
    say(f"journals and logs: {folder}")
    result = asyncio.run(run(seed, seconds, folder, say, kinds, profile))
    if result.violations:
        result.journals = str(folder)
    else:
        shutil.rmtree(folder)
    return result


def main(arguments: list[str]) -> int:
    """Run the command line of `make chaos`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.chaos")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--profile", choices=[*PROFILES], default=CHAOS.name, help="which servers, writers and faults")
    parser.add_argument("--kinds", nargs="+", default=[], help="only these kinds of faults of the profile")
    parser.add_argument("--release", default=ReleasesArena.release, help="of the profile releases: a tag or a commit")
    given = parser.parse_args(arguments)
    ReleasesArena.release = given.release
    profile = PROFILES[given.profile]
    if unknown := {*given.kinds} - {*profile.table}:
        parser.error(f"{profile.name} has no {', '.join(sorted(unknown))}; it has {', '.join(profile.table)}")
    seed = Random().randrange(10**6) if given.seed is None else given.seed

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    result = chaos(seed, given.seconds, say, given.kinds, profile)
    for finding in result.findings:
        say(f"VIOLATION {finding}")
    if result.violations:
        say(f"journals and logs are kept in {result.journals}")
    say(msgspec.json.encode(result).decode())
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
