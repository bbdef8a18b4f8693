"""One agent process: it takes its runs up where they stand and commits every message.

    python -m statecache.replay.agent FOLDER AGENT LIFE

For a message: a new change_id; `invoke` into the journal; the commit, expecting the change before it; then one of

    applied          `ok`; the state that came back is the parent of the next message
    not known        `unknown`; the same change_id again
    not applied      `fail`; an outage: the same change_id again, after a pause
                     a conflict: read the state. If it is this very change, the cache was wrong to deny it: `ok`, found.
                     If not, the message gets a new change_id on top of what is there.

A life after the first reads the journals of the lives before. A change that they left in doubt is sent once more
under its change_id, whatever the cache now shows: that the answer is right is the cache's promise, and the audit
looks whether it was kept. So a message has two change_ids only where the first was refused for certain.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from statecache import AsyncStateCache
from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.concurrency import TASKS
from statecache.core.commit.committer import new_change_id
from statecache.errors import (
    AlreadyExists,
    Backpressure,
    DurabilityNotMet,
    DurabilityRefused,
    Forked,
    Lost,
    OutcomeUnknown,
    Quarantined,
    StateCacheError,
    Unavailable,
    VersionConflict,
)
from statecache.model import Durability, State
from statecache.replay.journal import (
    Done,
    Fail,
    Fatal,
    Invoke,
    Journal,
    Level,
    Ok,
    Resumed,
    Started,
    Tail,
    Unknown,
    journal_path,
)
from statecache.replay.ledger import Ledger, Sent
from statecache.replay.pace import Pace
from statecache.replay.runs import NAMESPACE, AgentRun, RunState, advanced, beginning, key_of, state_after

PAUSE_MAX_S = 0.5
REFUSALS_MAX = 20
"""Conflicts on one message before the agent gives up: nobody else writes its runs."""

_NOT_KNOWN = (OutcomeUnknown, DurabilityNotMet)
_REFUSED = (VersionConflict, AlreadyExists, Forked, Quarantined, Lost)
_OUTAGE = (Unavailable, Backpressure)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's orders: its runs, how many at a time, durability (None: disk, or postgres if refused), patience."""

    durability: Durability | None
    concurrency: int
    patience_s: float
    seed: int
    runs: list[AgentRun]


def job_path(folder: Path, agent: int) -> Path:
    """Return the path of an agent's job."""
    return folder / f"agent-{agent}.job.json"


class Agent:
    """A player of recorded runs against the cache, several at a time."""

    def __init__(self, cache: AsyncStateCache, journal: Journal, job: Job, past: Ledger, *, pace: Pace) -> None:
        self._runs = cache.namespace(NAMESPACE, type=RunState)
        self._journal = journal
        self._job = job
        self._past = past
        self._pace = pace
        self._rng = Random(job.seed)  # noqa: S311 - pacing, not secrets
        self._level: Durability = job.durability or "disk"

    async def play(self) -> None:
        """Play all runs of the job."""
        runs = iter(self._job.runs)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._job.concurrency):
                tasks.create_task(self._play_some(runs))

    async def _play_some(self, runs: Iterator[AgentRun]) -> None:
        for run in runs:
            state = await self._taken_up(run)
            refusals = 0
            while (step := 0 if state is None else state.value.step) < len(run.messages):
                await TASKS.sleep(self._pace.think_s() * self._rng.uniform(0.5, 1.5))
                before = beginning(run.id) if state is None else state.value
                expected = "" if state is None else state.change_id
                sent = Sent(run=run.id, index=step, change_id=new_change_id(), expected=expected, first_at=monotonic())
                state = await self._commit(sent, advanced(before, run.messages[step]))
                refusals = 0 if state is not None and state.value.step > step else refusals + 1
                if refusals > REFUSALS_MAX:
                    raise VersionConflict(key_of(run.id), expected, None if state is None else state.change_id)

    async def _taken_up(self, run: AgentRun) -> State[RunState] | None:
        """Return the state to go on from, once a change left in doubt was sent again; None for a run not begun yet."""
        last = self._past.last.get(run.id)
        if last is None:
            return None
        step = self._past.acknowledged_steps(run.id)
        self._journal.write(Resumed(at=monotonic(), run=run.id, step=step))
        state = await self._read(run.id)
        there = 0 if state is None else state.value.step
        if last.ok is not None or there not in (last.index, last.index + 1):
            return state
        before = state.value if state is not None and there == last.index else state_after(run, last.index)
        return await self._commit(last, advanced(before, run.messages[last.index]))

    async def _read(self, run_id: str) -> State[RunState] | None:
        end, backoff = monotonic() + self._job.patience_s, Backoff(0.01, PAUSE_MAX_S)
        while True:
            try:
                return await self._runs.get(run_id)
            except _OUTAGE:
                if monotonic() > end:
                    raise
            await TASKS.sleep(backoff.take())

    async def _commit(self, sent: Sent, value: RunState) -> State[RunState] | None:
        """Commit a message and return the state after it, or the state found where the change was refused for good."""
        end, backoff = monotonic() + self._job.patience_s, Backoff(0.01, PAUSE_MAX_S)
        while True:
            invoke = Invoke(
                at=monotonic(), run=sent.run, index=sent.index, change_id=sent.change_id, expected=sent.expected
            )
            self._journal.write(invoke)
            level = self._level
            try:
                state = await self._send(sent, value)
            except _NOT_KNOWN as error:
                self._journal.write(Unknown(at=monotonic(), change_id=sent.change_id, error=_named(error)))
                if monotonic() > end:
                    raise
            except DurabilityRefused as error:
                self._journal.write(Fail(at=monotonic(), change_id=sent.change_id, error=_named(error)))
                self._fall_back(error, level)
                continue
            except _OUTAGE as error:
                self._journal.write(Fail(at=monotonic(), change_id=sent.change_id, error=_named(error)))
                if monotonic() > end:
                    raise
            except _REFUSED as error:
                self._journal.write(Fail(at=monotonic(), change_id=sent.change_id, error=_named(error)))
                return await self._found(sent)
            else:
                self._acknowledged(state, found=False)
                return state
            await TASKS.sleep(backoff.take())

    async def _send(self, sent: Sent, value: RunState) -> State[RunState]:
        if not sent.expected:
            return await self._runs.create(sent.run, value, durability=self._level, change_id=sent.change_id)
        return await self._runs.set(
            sent.run, value, expected=sent.expected, durability=self._level, change_id=sent.change_id
        )

    async def _found(self, sent: Sent) -> State[RunState] | None:
        state = await self._read(sent.run)
        if state is not None and state.change_id == sent.change_id:
            self._acknowledged(state, found=True)
        return state

    def _acknowledged(self, state: State[RunState], *, found: bool) -> None:
        self._journal.write(
            Ok(
                at=monotonic(),
                change_id=state.change_id,
                version=state.version,
                epoch=state.epoch,
                position="" if state.position is None else str(state.position),
                found=found,
            )
        )

    def _fall_back(self, refusal: DurabilityRefused, refused: Durability) -> None:
        """Go on at `postgres`, unless another run has seen to that; raise what refuses that, or what was asked for."""
        if self._job.durability is not None or refused == "postgres":
            raise refusal
        if self._level == refused:
            self._level = "postgres"
            self._journal.write(Level(at=monotonic(), level=self._level, reason=refusal.reason))


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def live(folder: Path, agent: int, life: int) -> int:
    """Live one life of an agent and return its exit status."""
    job = msgspec.json.decode(job_path(folder, agent).read_bytes(), type=Job)
    past = Ledger()
    for earlier in range(life):
        past.take(Tail(journal_path(folder, agent, earlier)).read())
    with Journal(journal_path(folder, agent, life)) as journal, Pace.shared(folder) as pace:
        journal.write(Started(at=monotonic(), agent=agent, life=life, pid=os.getpid()))
        try:
            async with AsyncStateCache() as cache:
                await Agent(cache, journal, job, past, pace=pace).play()
        except BaseExceptionGroup as errors:
            ours, others = errors.split(StateCacheError)
            if ours is None or others is not None:
                raise
            first = next(_leaves(ours))
            journal.write(Fatal(at=monotonic(), kind=type(first).__name__, error=str(first)))
            return 1
        journal.write(Done(at=monotonic()))
    return 0


def _leaves(errors: BaseExceptionGroup[StateCacheError]) -> Iterator[StateCacheError]:
    """Yield the errors that tasks raised; the first is the one to report."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def main(arguments: list[str]) -> int:
    """Run one life of an agent, as the supervisor starts it, and return its exit status."""
    folder, agent, life = arguments
    with suppress(KeyboardInterrupt):
        return asyncio.run(live(Path(folder), int(agent), int(life)))
    return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
