"""Readers that keep states near, parted from the server in every way: nobody sees anything older than it may be.

    make coherence SEED=7 [SECONDS=20]

Four processes, two of them synchronous, with several sessions each read and write a hundred keys in every mode, while
what keeps them coherent is cut, half-opened, stopped, slowed and killed (`severing` says how). All faults are drawn
from the seed and printed before anything runs; what they meet depends on the machine.

Checked at the end, from the journals and the chains in Postgres:

    ages         no read is older than its mode allows, none undercuts what its client has shown before (`ages`)
    history      what every read of a primary and every write says of the order of the changes (`checker`)
    rest         the end of a chain, the state in Postgres and the state in Redis are the same
    after all    every process is answered from near again

The exit status is 1 where a promise was broken, and 2 where the run proves nothing: too few answers came at once from
near, or a kind of fault struck too rarely.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import psycopg
import redis

from statecache.clock import monotonic
from tests.simulation.ages import Bounds, judge_ages
from tests.simulation.arena import SETTINGS, WORKER_LINE, Arena, arena
from tests.simulation.faults import behind
from tests.simulation.history import Operation, lines_of
from tests.simulation.judge import evidence, journals, judge, unexpected
from tests.simulation.nemesis import Strike
from tests.simulation.reader import PROCESSES, SYNC_PROCESSES
from tests.simulation.severing import Severing, enough, plan

SECONDS = 20.0
ENDING_S = 100.0
LIVE_S = 30.0
SESSIONS = 4
WINDOW_S = 1.0
COMMAND_S = 2.0
HITS_SHARE_MIN = 0.2
"""Which part of the local reads must have been answered at once."""
SHOWN_MAX = 20

Say = Callable[[str], object]


class Readers(Arena):
    """The servers and reader processes of a run; `near` sums what the near caches of the processes have counted."""

    names = PROCESSES
    lines = (*PROCESSES, WORKER_LINE)
    given = SETTINGS | {"near_window_s": str(WINDOW_S), "timeout_s": str(COMMAND_S), "connect_timeout_s": "1"}
    workers_max = 1

    def command(self, name: str, called: str) -> list[str | Path]:
        """Return the command line of a process."""
        kind = "sync" if name in SYNC_PROCESSES else "async"
        return [
            sys.executable, "-m", "tests.simulation.reader", self.folder, called, str(self.seed), str(SESSIONS), kind,
        ]  # fmt: skip


class Result(msgspec.Struct, kw_only=True):
    """The findings of a run; their JSON is the last line that it prints."""

    seed: int
    seconds: float
    operations: int = 0
    unknown: int = 0
    reads: dict[str, int] = {}
    writes: int = 0
    local_hits: int = 0
    local_hits_share: float = 0.0
    near: dict[str, int] = {}
    faults: dict[str, int] = {}
    proves_nothing: list[str] = []
    violations: int = 0
    findings: list[str] = []
    journals: str = ""

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.violations else 2 if self.proves_nothing else 0


class Run:
    """One run, from its start to its judgement."""

    def __init__(self, here: Readers, result: Result, say: Say) -> None:
        self._here = here
        self._result = result
        self._say = say
        self._severing = Severing(here)
        self._struck: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._began = monotonic()

    async def part(self, strikes: list[Strike], seconds: float) -> None:
        """Let the faults strike, and wait until all are over."""
        self._began = monotonic()
        self._say(f"  0.00 s  is {self._began:.2f} in the journals")
        async with asyncio.TaskGroup() as tasks:
            for strike in strikes:
                await self._until(strike.at_s)
                self._here.look_after()
                tasks.create_task(self._strike(strike))
            await self._until(seconds)

    def _elapsed(self) -> float:
        return monotonic() - self._began

    async def _until(self, at_s: float) -> None:
        await self._here.while_waiting(max(0.0, at_s - self._elapsed()))

    async def _strike(self, strike: Strike) -> None:
        struck = await self._severing.strike(strike)
        (self._struck if struck else self._missed)[strike.kind] += 1
        self._say(f"{self._elapsed():6.2f} s  {strike.kind} {'over' if struck else 'met nothing'}")

    async def settle(self) -> None:
        """Heal, wait until reads are local again and everything is flushed, and end the processes."""
        await self._here.heal()
        await self._near_again()
        processes = list(self._here.writers.values())
        await self._here.end_writers()
        for process in processes:
            self._count(process.written().splitlines())
        await self._flushed()
        await self._here.end_workers()

    async def _near_again(self) -> None:
        """Wait until every process is answered at once again; where none ever was, the run proves nothing anyway."""
        begun = monotonic()
        paths = {name: self._here.journal(process) for name, process in self._here.writers.items()}
        seen = {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}
        if not any(_hits(path, 0) for path in paths.values()):
            return
        while waiting := [name for name, path in paths.items() if not _hits(path, seen[name])]:
            if monotonic() - begun > LIVE_S:
                self._found(f"liveness: {LIVE_S:g} s after the last fault nothing is answered near in {waiting}")
                return
            await self._here.while_waiting(0.2)
        self._say(f"{self._elapsed():6.2f} s  all are near again {monotonic() - begun:.2f} s after the last fault")

    def _count(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line.startswith(b'{"near":'):
                told = Counter(self._result.near)
                told.update({name: int(value) for name, value in _counted(line).items()})
                self._result.near = dict(told)

    async def _flushed(self) -> None:
        end, late = monotonic() + LIVE_S, [-1]
        while late and monotonic() < end:
            with suppress(redis.RedisError, psycopg.Error):
                late = await behind(self._here)
            await self._here.while_waiting(0.05)
        if late:
            self._found(f"liveness: {LIVE_S:g} s after the last fault shards {late} were not flushed")

    def judged(self) -> None:
        """Check everything, and fill in the result."""
        here, result = self._here, self._result
        operations = journals(here.folder)
        verdict, wrong = judge(here, operations, [])
        with here.postgres() as connection:
            chains = evidence(connection, here.settings.postgres_schema).chains
        bounds = Bounds(window_s=here.settings.near_window_s, command_s=here.settings.timeout_s)
        for violation in (*judge_ages(operations, chains, bounds), *verdict.violations):
            self._found(str(violation), violation.operations)
        for operation in operations:
            for told in unexpected([operation]):
                self._found(told, [operation])
        for finding in (*wrong, *here.crashes):
            self._found(finding)
        _count_up(result, operations)
        result.faults = dict(sorted(self._struck.items()))
        result.proves_nothing = _lacking(result)
        self._table(operations)

    def _found(self, finding: str, concerned: Iterable[Operation] = ()) -> None:
        self._result.violations += 1
        if len(self._result.findings) >= SHOWN_MAX:
            return
        self._result.findings.append(finding)
        for operation in concerned:
            self._result.findings += [f"    {line}" for line in _journal_lines(self._here.folder, operation)]

    def _table(self, operations: list[Operation]) -> None:
        self._say("\nfault           struck  missed")
        for kind in sorted(self._struck | self._missed):
            self._say(f"{kind:<14} {self._struck[kind]:>7}  {self._missed[kind]:>6}")
        ended = Counter((one.verb, one.outcome) for one in operations)
        at_once = Counter(one.verb for one in operations if one.at_once)
        self._say("\noperation               ok  at once     fail  unknown")
        for verb in sorted({verb for verb, _ in ended}):
            ok, fail, unknown = (ended[verb, outcome] for outcome in ("ok", "fail", "unknown"))
            self._say(f"{verb:<16} {ok:>9}  {at_once[verb]:>7}  {fail:>7}  {unknown:>7}")


def _hits(journal: Path, offset: int) -> bool:
    """Return whether the journal tells of an answer at once, from that offset in bytes on."""
    if not journal.exists():
        return False
    with journal.open("rb") as file:
        file.seek(offset)
        return b'"at_once":true' in file.read()


def _counted(line: bytes) -> dict[str, float]:
    """Return the numbers of the line in which a process reports the counts of its near cache."""
    told = msgspec.json.decode(line, type=dict[str, dict[str, object]])["near"]
    return {name: value for name, value in told.items() if isinstance(value, int) and not isinstance(value, bool)}


def _count_up(result: Result, operations: list[Operation]) -> None:
    done = [one for one in operations if one.outcome == "ok"]
    reads = [one for one in done if one.kind == "read"]
    local = [one for one in reads if one.mode == "local"]
    result.operations = len(operations)
    result.unknown = sum(one.outcome == "unknown" for one in operations)
    result.writes = len(done) - len(reads)
    result.reads = dict(sorted(Counter(one.verb.removeprefix("get ") for one in reads).items()))
    result.local_hits = sum(one.at_once for one in local)
    result.local_hits_share = round(result.local_hits / max(1, len(local)), 3)


def _lacking(result: Result) -> list[str]:
    """Return what is missing for the run to prove anything."""
    lacking = [
        f"{kind} struck {result.faults.get(kind, 0)} times, and not {enough(kind, result.seconds)}"
        for kind in sorted({strike.kind for strike in plan(result.seed, result.seconds, WINDOW_S)})
        if result.faults.get(kind, 0) < enough(kind, result.seconds)
    ]
    if result.local_hits_share < HITS_SHARE_MIN:
        share = f"{result.local_hits_share:.0%} of the local reads were answered at once"
        lacking.append(f"{share}, and not {HITS_SHARE_MIN:.0%}")
    return lacking


def _journal_lines(folder: Path, operation: Operation) -> list[str]:
    """Return the journal's lines about an operation."""
    process = operation.session.partition(".")[0]
    lines = lines_of((folder / f"{process}.jsonl").read_bytes())
    return [f"{line}" for line in lines if line.tag == operation.tag]


async def run(seed: int, seconds: float, folder: Path, say: Say) -> Result:
    """Do one run in this folder, within `seconds` and ENDING_S."""
    strikes = plan(seed, seconds, WINDOW_S)
    result = Result(seed=seed, seconds=seconds)
    say(f"seed {seed}, {seconds:g} s, {len(strikes)} faults planned")
    for strike in strikes:
        say(str(strike))
    async with asyncio.timeout(seconds + ENDING_S), arena(folder, seed, Readers) as here:
        one = Run(here, result, say)
        try:
            await one.part(strikes, seconds)
            await one.settle()
            one.judged()
        finally:
            here.keep_logs()
    return result


def coherence(seed: int, seconds: float, say: Say) -> Result:
    """Do one run in a folder of its own, which is kept where there is a violation to look into."""
    folder = Path(tempfile.mkdtemp(prefix="statecache-coherence-"))
    say(f"journals and logs: {folder}")
    result = asyncio.run(run(seed, seconds, folder, say))
    if result.violations:
        result.journals = str(folder)
    else:
        shutil.rmtree(folder)
    return result


def main(arguments: list[str]) -> int:
    """Run the command line of `make coherence`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coherence")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(arguments)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    result = coherence(Random().randrange(10**6) if given.seed is None else given.seed, given.seconds, say)
    for finding in result.findings:
        say(finding if finding.startswith(" ") else f"VIOLATION (seed {result.seed}) {finding}")
    for lack in result.proves_nothing:
        say(f"PROVES NOTHING (seed {result.seed}) {lack}")
    if result.violations:
        say(f"journals and logs are kept in {result.journals}")
    say(msgspec.json.encode(result).decode())
    return result.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
