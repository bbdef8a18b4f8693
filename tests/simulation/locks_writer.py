"""A writer of the chaos of locks and steps: it counts under locks, and runs steps whose effects stand in a file.

    python -m tests.simulation.locks_writer FOLDER NAME SEED SESSIONS async|sync

    counted    takes a lock, reads by the lease and writes what it has read and one more, twice
    stale      does the same, but is stuck for longer than its ttl before it writes
    step       runs a step that others want as well; its function is quick, slow, or blocks its process
    leased     runs such a step by a lease, which may be lost while the function runs

What sessions do beside that goes with the kinds of faults of the run, which stand in its folder's file `kinds`: with
`step_blocked` some functions block the loop that they run in, with `step_leased` steps are run by leases.

A lock's holder notes the time for which it believed to be alone. The effects of steps stand in `<name>.effects`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from statecache.clock import monotonic
from statecache.errors import LeaseLost, LockTimeout, StaleToken, StepUnknown
from tests.simulation.history import Invoke, Recorder
from tests.simulation.writer import KINDS_FILE, VERBS, Noting, Session, main

COUNTERS = tuple(f"locked/{number}/count" for number in range(8))
JOBS = ("jobs/1", "jobs/2")
TTL_S = 1.0
LOCK_S = 2.0
HOLD_S = 0.03
BUCKET_S = 3.0
"""For so long all sessions mean the same steps."""
STEP_S = 2.5
SLOW_S = (0.0, 0.0, 0.2, 7.0)
BLOCKED_S = 1.5


class Effect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of what steps have done: a function has begun, or is about to return."""

    step: str
    by: str
    attempt: int
    at: float
    ends: bool = False


class LocksSession(Session):
    """What a session does with locks and steps, beside the other verbs."""

    def __init__(self, cache: Any, recorder: Recorder, name: str, rng: Random, *, plain: bool) -> None:
        super().__init__(cache, recorder, name, rng, plain=plain)
        self._kinds = {*(Path(sys.argv[1]) / KINDS_FILE).read_text().split()}
        self.verbs = {**self.verbs, "leased": 3 if "step_leased" in self._kinds else 0}

    verbs = VERBS | {"counted": 30, "stale": 1, "step": 6, "leased": 1}
    levels = ("memory", "memory", "postgres")

    async def _get(self, key: str) -> None:
        await super()._get(key if self._rng.random() < 0.5 else self._rng.choice(COUNTERS))

    async def _counted(self, key: str, *, stuck_s: float = 0.0) -> None:
        counter = self._rng.choice(COUNTERS)
        lock, _, _ = counter.rpartition("/")
        taken = self._begin("lock", [lock], "ask")
        with _LockNoting(self._recorder, taken, []):
            async with self._cache.lock(lock, ttl=TTL_S, timeout=LOCK_S) as lease:
                held = self._begin("hold", [lock], "ask")
                self._recorder.ok(taken)
                for _ in range(2):
                    await self._counted_once(lease, counter, stuck_s)
                    await _passing(self._rng.uniform(0, HOLD_S))
                token = lease.token
                self._recorder.ok(held, verdict=f"{token.epoch}-{token.count}")
                if lease.lost:  # it may have been lost before that was written
                    self._recorder.unknown(held, LeaseLost(lock, token=str(token), reason="at the end"))

    async def _counted_once(self, lease: Any, counter: str, stuck_s: float) -> None:
        sent = self._recorder.invoke(self._name, "get", [counter], kind="read", mode="lease")
        before = None
        with _LockNoting(self._recorder, sent, []):
            before = await lease.get(counter)
            self._recorder.ok(sent, read=[self._seen(counter, before)])
        if stuck_s:
            threading.Event().wait(stuck_s)
        sent = self._begin("set", [counter], "write")
        token = lease.token
        value = self._value(sent, None if before is None else before.value) | {"token": [token.epoch, token.count]}
        with _LockNoting(self._recorder, sent, []):
            state = await lease.set(counter, value, reason=sent.tag, durability=sent.level)
            self._wrote(sent, [state])

    async def _stale(self, key: str) -> None:
        await self._counted(key, stuck_s=TTL_S * 1.3)

    async def _step(self, _: str) -> None:
        await self._stepped(self._cache, self._rng.choice(JOBS), self._rng.choice("abc"))

    async def _leased(self, _: str) -> None:
        job = self._rng.choice(JOBS)
        taken = self._begin("lock", [job], "ask")
        with _LockNoting(self._recorder, taken, []):
            async with self._cache.lock(job, ttl=TTL_S, timeout=LOCK_S) as lease:
                self._recorder.ok(taken)
                await self._stepped(lease, job, self._rng.choice("de"), blocks=self._rng.random() < 0.5)

    async def _stepped(self, scope: Any, job: str, name: str, *, blocks: bool = False) -> None:
        name = f"{name}{int(monotonic() / BUCKET_S) - self._rng.choice((0, 0, 1, 2))}"
        sent = self._begin("step", [f"{job}/steps/{name}"], "ask")
        blocked_s, slow_s = BLOCKED_S if blocks else self._rng.choice((0.0, 0.0, BLOCKED_S)), self._rng.choice(SLOW_S)

        def blocking(step: Any) -> dict[str, str]:
            self._effect(sent, step.attempt)
            threading.Event().wait(slow_s if self._plain else blocked_s)
            self._effect(sent, step.attempt, ends=True)
            return {"by": sent.tag}

        async def slow(step: Any) -> dict[str, str]:
            self._effect(sent, step.attempt)
            await _passing(slow_s)
            self._effect(sent, step.attempt, ends=True)
            return {"by": sent.tag}

        blocks = blocks or (self._rng.random() < 0.3 and "step_blocked" in self._kinds)
        function: Any = blocking if self._plain or blocks else slow
        with _LockNoting(self._recorder, sent, []):
            result = await scope.step(job, name, function, reason=sent.tag, timeout=STEP_S)
            self._recorder.ok(sent, verdict=result["by"])

    def _effect(self, sent: Invoke, attempt: int, *, ends: bool = False) -> None:
        line = Effect(step=sent.keys[0], by=sent.tag, attempt=attempt, at=monotonic(), ends=ends)
        process = sent.session.partition(".")[0]
        path = Path(sys.argv[1]) / f"{process}.effects"
        journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(journal, msgspec.json.encode(line) + b"\n")
        os.close(journal)


class _LockNoting(Noting):
    """Note how a lock or a step ended where it did not end well."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (StepUnknown, StaleToken)):
            self._recorder.fail(self._sent, error, final=True)
        elif isinstance(error, (LeaseLost, LockTimeout)):
            self._recorder.fail(self._sent, error, final=False)
        else:
            return super().__exit__(kind, error, trace)
        return True


async def _passing(seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:], LocksSession)
