"""One visit of a failpoint: a deployment of its own, one process that meets the fault, and what comes of it.

    client    the agent meets it, beside one worker; killed, it goes on where it was, in another process; frozen, a
              companion goes on meanwhile with all its keys
    worker    the worker meets it while the agent tells its story; a second worker stands by; killed, it is replaced;
              in the end it is told to stop, which it may meet too

Then everything has to come to rest, and the checker says whether each acknowledged change is there once, in unbroken
chains, the same in both tiers.
"""

from __future__ import annotations

import asyncio
import logging
import select
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

import statecache_workers.gatekeeper
import statecache_workers.janitor
import statecache_workers.runner
from statecache import AsyncStateCache, Settings
from statecache.clock import monotonic
from statecache.concurrency import THREADS, run
from statecache.core.postgres.migrate import migrate
from statecache_workers.runner import run_worker
from tests.simulation import boundaries
from tests.simulation.actor import Actor
from tests.simulation.arena import EXPECTED_ERRORS
from tests.simulation.boundaries import Kind, Plan
from tests.simulation.checker import check
from tests.simulation.children import Child, Report, thaw
from tests.simulation.evidence import Evidence
from tests.simulation.history import Recorder
from tests.simulation.judge import evidence, journals, tips, unexpected
from tests.simulation.story import ENTRIES_KEPT, POISON, E, Story, World, meanwhile
from tests.simulation.story_locks import JOBS, repeated_effects

LEASE_S = 0.6
FROZEN_S = 3 * LEASE_S
VISIT_S = 60.0
OWNS = "heads #1"
"""The first boundary of a worker that has taken shards."""
Role = Literal["client", "worker"]


class Failpoint(msgspec.Struct, frozen=True):
    """Where a process meets which fault: in which situation of the story, at which boundary.

    `elsewhere` names the other situations that pass this boundary.
    """

    role: Role
    situation: str
    boundary: str
    elsewhere: tuple[str, ...]
    kind: Kind


class Visited(msgspec.Struct, kw_only=True):
    """The outcome of a visit; `boundaries` are those that its process passed by."""

    role: Role
    situation: str
    failpoint: Failpoint | None = None
    reached: bool = False
    operations: int = 0
    seconds: float = 0.0
    violations: list[str] = []
    boundaries: list[str] = []


class Visit:
    """One visit; without a failpoint it only reports the boundaries of the role."""

    def __init__(
        self, urls: tuple[str, str], folder: Path, name: str, *, role: Role, situation: str, failpoint: Failpoint | None
    ) -> None:
        self._settings = _settings(urls, name)
        self._folder = folder
        self._role = role
        self._story = [*dict.fromkeys(("first", situation, "ending"))]
        self._failpoint = failpoint
        self._plan = Plan(failpoint.boundary, failpoint.kind) if failpoint else None
        self._result = Visited(role=role, situation=situation, failpoint=failpoint)
        self._children: list[Child] = []
        self._workers: list[Child] = []
        self._victim: Child | None = None
        self._at = 0
        self._lives = 0
        self._thaw_at: float | None = None
        self._end = monotonic() + VISIT_S

    def run(self) -> Visited:
        """Go through all of it and return the outcome."""
        begun = monotonic()
        self._folder.mkdir()
        try:
            self._finish(self._start("migrate", lambda _: _migrate(self._settings)))
            self._start_worker(self._plan if self._role == "worker" else None, told=self._role == "worker")
            self._play()
            if self._role == "worker":
                self._stop_the_first()
            self._judge()
        except (TimeoutError, AssertionError) as error:
            self._result.violations.append(f"it did not come to an end: {error}")
        finally:
            for child in self._children:
                child.end()
        self._result.seconds = monotonic() - begun
        return self._result

    # Processes.

    def _start(self, name: str, work: Any) -> Child:
        child = Child(name, work, self._folder / f"{name}.log")
        self._children.append(child)
        return child

    def _start_worker(self, plan: Plan | None, *, told: bool = False) -> None:
        settings = self._settings.model_copy(update={"writer": f"worker{len(self._workers)}"})

        def work(report: Report) -> int:
            return _work(settings, report if told else str, plan)

        child = self._start(f"worker-{len(self._workers)}", work)
        self._workers.append(child)
        if plan is not None:
            self._victim = child

    def _start_agent(self, plan: Plan | None) -> Child:
        held = [worker.pid for worker in self._workers] if self._role == "client" else []
        life, start, path = self._lives, self._at, self._folder / f"agent-{self._lives}.jsonl"
        told = self._role == "client" and life == 0
        self._lives += 1

        def work(report: Report) -> int:
            asyncio.run(
                _tell(self._settings, report, plan, told=told, path=path, story=self._story, start=start, held=held)
            )
            return 0

        child = self._start(f"agent-{life}", work)
        if plan is not None:
            self._victim = child
        return child

    def _start_companion(self) -> Child:
        path = self._folder / "companion.jsonl"

        def work(report: Report) -> int:
            asyncio.run(_accompany(self._settings, report, path))
            return 0

        return self._start("companion", work)

    # What happens.

    def _play(self) -> None:
        agent = self._start_agent(self._plan if self._role == "client" else None)
        while agent.status is None:
            self._look((agent, *self._workers))
            if agent.status == -signal.SIGKILL and agent is self._victim:
                thaw([worker.pid for worker in self._workers if worker.status is None])
                self._victim = None
                agent = self._start_agent(None)
        if agent.status != 0:
            raise AssertionError(f"{agent.name} ended with {agent.status}: {agent.tail()}")

    def _stop_the_first(self) -> None:
        first = self._workers[0]
        while not self._has_settled():  # a story can be over before the worker has begun to listen
            self._look(self._workers)
        first.send(signal.SIGTERM)
        while first.status is None:
            self._look(self._workers)

    def _look(self, children: Sequence[Child]) -> None:
        """Wait until a child reports something or ends, and act on it; raise TimeoutError past the visit's end."""
        now = monotonic()
        if now > self._end:
            running = ", ".join(child.name for child in children if child.status is None)
            raise TimeoutError(f"{running} after {VISIT_S:g} s, telling {self._story[self._at]!r}")
        open_ones = {child.fd: child for child in children if child.status is None}
        wait_s = min(self._end, self._thaw_at or self._end) - now
        for fd in select.select(open_ones, [], [], max(0.0, wait_s))[0]:
            child = open_ones[fd]
            for line in child.lines():
                self._hear(child, line)
        if self._thaw_at is not None and monotonic() >= self._thaw_at and self._victim is not None:
            self._thaw_at = None
            self._victim.send(signal.SIGCONT)
        self._replace_workers()

    def _hear(self, child: Child, line: str) -> None:
        what, _, rest = line.partition(" ")
        if what == "boundary":
            self._result.boundaries.append(rest)
        elif what == "at":
            self._at = int(rest)
        elif what == "finding":
            self._result.violations.append(f"{child.name}: {rest}")
        elif what == "hit":
            self._result.reached = True
            if self._failpoint is not None and self._failpoint.kind == "stop":
                self._frozen(child)
        if self._role == "worker" and len(self._workers) == 1 and self._at >= 1 and self._has_settled():
            self._start_worker(None)

    def _has_settled(self) -> bool:
        """Return whether the first worker owns both shards, of which it keeps the lower one, or has met its fault.

        A second worker that came earlier could be given the lower shard, and then what a situation does to that shard
        would be handled by a process that reports nothing.
        """
        return self._result.reached or OWNS in self._result.boundaries

    def _frozen(self, child: Child) -> None:
        """Let others go on while it is frozen; a worker's others are the agent and the other worker."""
        assert child.wait_until_stopped()
        if self._role == "worker":
            self._thaw_at = monotonic() + FROZEN_S
            return
        until = monotonic() + FROZEN_S
        thaw([worker.pid for worker in self._workers])
        companion = self._start_companion()
        self._finish(companion)
        while (left := until - monotonic()) > 0:
            select.select([], [], [], left)
        child.send(signal.SIGCONT)

    def _replace_workers(self) -> None:
        for worker in self._workers:
            if worker.status in (None, 0) or worker.fd < 0:
                continue
            if worker is not self._victim or worker.status != -signal.SIGKILL:
                raise AssertionError(f"{worker.name} ended with {worker.status}: {worker.tail()}")
            worker.end()
            if len(self._workers) < 3:
                self._start_worker(None)
                return

    def _finish(self, child: Child) -> list[str]:
        """Wait for a process that does one thing, and return its lines; raise AssertionError if it failed."""
        told: list[str] = []
        while child.status is None:
            left = self._end - monotonic()
            if not select.select([child.fd], [], [], max(0.0, left))[0]:
                raise TimeoutError(f"{child.name}: {child.tail()}")
            told += child.lines()
        if child.status != 0:
            raise AssertionError(f"{child.name} ended with {child.status}: {child.tail()}")
        self._result.violations += [line.removeprefix("finding ") for line in told if line.startswith("finding ")]
        return told

    def _judge(self) -> None:
        thaw([worker.pid for worker in self._workers if worker.status is None])
        judging = self._start("judge", lambda report: _judge(self._settings, self._folder, self._story, report))
        for line in self._finish(judging):
            if line.startswith("operations "):
                self._result.operations = int(line.split()[1])


def _settings(urls: tuple[str, str], name: str) -> Settings:
    """Return settings with short leases, tokens and claims, whose streams drop entries by size, never the newest."""
    return Settings(
        redis_url=urls[0], postgres_url=urls[1], prefix=name, postgres_schema=name, shards=2, timeout_s=4.0,
        connect_timeout_s=2.0, hydrate_token_s=0.3, reservation_s=0.4, lease_s=LEASE_S, lease_renew_s=LEASE_S / 4,
        near_window_s=0.6, step_claim_s=1.0,
        retention_s=60.0, retention_bytes_max=2 * 250 * ENTRIES_KEPT, redis_ttl_s=600.0, absent_ttl_s=60.0, drain_s=3.0,
        writer="agent",
    )  # fmt: skip


def _migrate(settings: Settings) -> int:
    run(migrate(settings, io=THREADS))
    return 0


def _work(settings: Settings, report: Report, plan: Plan | None) -> int:
    """Run a worker that tidies and retries more often than usual; return its exit status."""
    statecache_workers.janitor.ROUND_S, statecache_workers.janitor.SWEEP_S = 0.1, 0.3
    statecache_workers.runner.PAUSE_MAX_S = 0.3
    statecache_workers.gatekeeper.PAUSE_S, statecache_workers.gatekeeper.PAUSE_MAX_S = 0.05, 0.3
    boundaries.install(settings.postgres_schema, report, plan)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return asyncio.run(run_worker(settings))


async def _tell(
    settings: Settings, report: Report, plan: Plan | None, *, told: bool, path: Path, story: list[str], start: int,
    held: list[int],
) -> None:  # fmt: skip
    """Run the agent."""
    boundaries.install(settings.postgres_schema, report if told else str, plan)
    world = World(settings, report)
    with Recorder(path, path.stem) as recorder:
        async with AsyncStateCache(settings=settings) as cache:
            teller = Story(world, Actor(cache, recorder, "story"), folder=path.parent, hold=lambda: held)
            await teller.tell(story, start, lambda number: report(f"at {number}"))
    world.close()


async def _accompany(settings: Settings, report: Report, path: Path) -> None:
    """Run the companion."""
    world = World(settings, report)
    with Recorder(path, path.stem) as recorder:
        async with AsyncStateCache(settings=settings) as cache:
            await meanwhile(world, Actor(cache, recorder, "meanwhile"))
    world.close()


def _judge(settings: Settings, folder: Path, story: list[str], report: Report) -> int:
    """Wait until everything is at rest, judge all of it, and return the exit status."""
    world, schema = World(settings, report), settings.postgres_schema
    asyncio.run(world.until(world.at_rest, "rest"))
    operations = journals(folder)
    report(f"operations {len(operations)}")
    found = evidence(world.psql, schema)
    for line in _not_as_told(world, found, story):
        report(f"finding {line}")
    world.look()
    wrong = [line for line in tips(world.psql, world.raw, world.keys, schema, found) if not line.startswith(POISON)]
    chains = {key: chain for key, chain in found.chains.items() if not key.startswith(JOBS)}
    verdict = check(operations, msgspec.structs.replace(found, chains=chains))
    wrong += [f"the step {step} was done more than once" for step in repeated_effects(folder)]
    strange = unexpected(operations, (*EXPECTED_ERRORS, "LeaseLost", "StaleToken", "LockTimeout", "StepUnknown"))
    for line in (*map(str, verdict.violations), *wrong, *strange):
        report("finding " + line.replace("\n", " "))
    return 0


def _not_as_told(world: World, found: Evidence, story: list[str]) -> list[str]:
    """Return how what was set aside differs from what the story had set aside."""
    aside = {key for _, key in found.conflicts}, {key for _, key in found.quarantined}
    wanted = {E} if {"vouched", "leaving"} & {*story} else set(), {POISON} if "poison" in story else set()
    wrong = [f"set aside are {aside}, expected were {wanted}"] if aside != wanted else []
    parked = world.psql.execute("SELECT count(*) FROM quarantine WHERE n < 0").fetchone()
    if "poison" in story and parked == (0,):
        wrong.append("the entry of another program is not in quarantine")
    return wrong
