"""One process of the soak of threads: many sessions share one synchronous client, and everything that threads may meet.

    python -m tests.simulation.threaded FOLDER NAME SEED SESSIONS

Threads take turns as often as the interpreter can, so that whoever relies on not being interrupted is. Each session is
a thread that does what a writer's session does (`writer`), with random timeouts. Beside them

    the main thread    is a session whose operations a signal handler ends at random moments
    a forker           forks a child that uses the inherited client for a few operations, and must end by itself; not
                       over TLS, for OpenSSL's own locks may be held by another thread at that moment
    a newcomer         makes clients of its own, and throws every other one away without closing it

SIGTERM ends the process when its operations have ended; SIGUSR1 lets no new one begin until SIGUSR2. What is left then,
a thread of the library or a descriptor, is told, and the exit status is 1.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from traceback import FrameSummary, extract_tb, format_stack
from typing import Any, Self

from statecache import StateCache
from statecache.clock import monotonic
from statecache.errors import StateCacheError
from tests.simulation.history import Recorder
from tests.simulation.writer import PAUSE_S, Session
from tests.support.awaited import Awaited

SWITCH_S = 1e-6
"""How long a thread goes on before another one may, in seconds: a five thousandth of what is usual."""
INTERRUPTED_S = 0.05
"""After how many seconds on average the main thread is interrupted."""
FORK_S = 1.0
CHILD_S = 30.0
"""How long a forked child may take before it counts as hanging."""
CHILD_STEPS = 6
NEWCOMER_S = 0.3
THREADS_END_S = 10.0
OURS = (
    "statecache-near", "statecache-events", "statecache-leases", "statecache-steps", "statecache-opening",
    "statecache-connecting", "statecache-beside",
)  # fmt: skip


class Interrupted(BaseException):
    """The main thread's signal handler ends what it is in."""


class Inline(Awaited):
    """A synchronous client under the asynchronous interface: each call is done at once, in the calling thread."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        async def called(*args: Any, **more: Any) -> Any:
            return found(*args, **more)

        return called

    async def list(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Yield the states of the listing."""
        for state in self._client.list(*args, **more):
            yield state

    @asynccontextmanager
    async def transaction(self, *names: str, **more: Any) -> AsyncIterator[Any]:
        """Open a transaction and close it at the end."""
        with self._client.transaction(*names, **more) as entered:
            yield _InTransaction(entered)

    @asynccontextmanager
    async def lock(self, name: str, **more: Any) -> AsyncIterator[Any]:
        """Take a lock and release it at the end."""
        with self._client.lock(name, **more) as lease:
            yield _Lease(lease)

    async def transact(self, names: Any, function: Callable[[Any], Any], **more: Any) -> Any:
        """Run the function, which must be a plain one, in a transaction."""
        return self._client.transact(names, function, **more)


class _InTransaction(Inline):
    """Reads are awaited; writes are only noted by a transaction, so they are plain calls."""

    def __getattr__(self, name: str) -> Any:
        if name in ("set", "create", "delete", "states"):
            return getattr(self._client, name)
        return super().__getattr__(name)


class _Lease(Inline):
    """The verbs are awaited; whether it was lost is asked at once."""

    def check(self) -> None:
        """Check the lease."""
        self._client.check()


def finish(story: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that never has to wait to its end."""
    try:
        story.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something that is not done in this thread")


class Switches:
    """What signals have told the process; every thread reads it."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self.going = threading.Event()
        self.going.set()
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGUSR1, lambda *_: self.going.clear())
        signal.signal(signal.SIGUSR2, lambda *_: self.going.set())

    def _end(self, *_: object) -> None:
        self.ending.set()
        self.going.set()

    def pause(self, seconds: float) -> bool:
        """Wait that many seconds, or until the end, and then until operations may begin; return False at the end."""
        self.ending.wait(seconds)
        self.going.wait()
        return not self.ending.is_set()


class Soak:
    """The work of one process."""

    def __init__(self, folder: Path, name: str, seed: int, sessions: int) -> None:
        self._folder = folder
        self._name = name
        self._seed = seed
        self._sessions = sessions
        self._switches = Switches()
        self._cache = StateCache()
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._cache.close()

    def run(self) -> None:
        """Run until told to end."""
        with Recorder(self._folder / f"{self._name}.jsonl", self._name) as recorder:
            threads = [
                threading.Thread(target=self._guarded, args=(self._play, recorder, f"s{number}"))
                for number in range(self._sessions)
            ]
            beside = [self._come_and_go] + [self._fork] * (not self._cache.settings.redis_url.startswith("rediss"))
            threads += [threading.Thread(target=self._guarded, args=(one,)) for one in beside]
            for thread in threads:
                thread.start()
            try:
                self._guarded(self._be_interrupted, recorder)
            finally:
                for thread in threads:
                    thread.join()

    def lent(self) -> list[str]:
        """Return what the client counts as lent although nobody uses it any more."""
        gc.collect()  # what was interrupted may wait for that
        tier = self._cache._runtime
        pools: dict[str, Any] = {"Redis": tier.redis.pool, "Postgres": tier.postgres.pool}
        return [
            f"{name}: {pool.lent} lent, {pool._slots._free} of {pool._size} free"
            for name, pool in pools.items()
            if pool.lent or pool._slots._free != pool._size
        ]

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """End the process's run where something fails that no session explains."""
        try:
            work(*args)
        except Exception as error:  # whatever it is, it must be seen
            way = " < ".join(f"{frame.name} {Path(frame.filename).name}:{frame.lineno}" for frame in _frames(error))
            self.failures.append(f"{work.__name__}: {type(error).__name__}: {error} ({way})")
            os.kill(os.getpid(), signal.SIGTERM)

    def _session(self, recorder: Recorder, name: str) -> tuple[Session, Random]:
        rng = Random(f"{self._seed} {self._name} {name}")
        return Session(Inline(self._cache), recorder, name, rng, plain=True), rng  # type: ignore[arg-type]

    def _play(self, recorder: Recorder, name: str) -> None:
        session, rng = self._session(recorder, name)
        while self._switches.pause(rng.uniform(0, PAUSE_S)):
            finish(session.step())

    def _be_interrupted(self, recorder: Recorder) -> None:
        """Play a session in the main thread; an operation interrupted has no end in the journal, so it is unknown."""
        lives, within = 0, False
        session, rng = self._session(recorder, "main0")

        def interrupt(*_: object) -> None:
            if within:  # another thread may have taken the signal, and told of it late
                raise Interrupted

        signal.signal(signal.SIGALRM, interrupt)
        while self._switches.pause(rng.uniform(0, PAUSE_S)):
            try:
                within = True
                signal.setitimer(signal.ITIMER_REAL, max(1e-4, rng.expovariate(1 / INTERRUPTED_S)))
                finish(session.step())
                within = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                within = False
                lives += 1  # a session does one operation at a time, and of that one nobody knows the end
                session, _ = self._session(recorder, f"main{lives}")

    def _fork(self) -> None:
        number, rng = 0, Random(f"{self._seed} {self._name} fork")
        while self._switches.pause(rng.uniform(0, 2 * FORK_S)):
            number += 1
            child = os.fork()
            if child == 0:
                os._exit(self._child(f"{self._name}-f{number}"))
            if (status := _status(child)) != 0:
                raise AssertionError(f"the forked child {number} ended with {status}")

    def _child(self, name: str) -> int:
        """Run a forked child, with the inherited client and no other thread; return its exit status."""
        try:
            with Recorder(self._folder / f"{name}.jsonl", name) as recorder:
                session = Session(
                    Inline(self._cache),  # type: ignore[arg-type]
                    recorder, "child", Random(f"{self._seed} {name}"), plain=True,
                )  # fmt: skip
                for _ in range(CHILD_STEPS):
                    finish(session.step())
            self._cache.close()
        except BaseException as error:  # nothing may go on from here in a copy of this process
            os.write(2, f"{name}: {type(error).__name__}: {error}\n".encode())
            return 1
        return 0

    def _come_and_go(self) -> None:
        number, rng = 0, Random(f"{self._seed} {self._name} newcomer")
        while self._switches.pause(rng.uniform(0, 2 * NEWCOMER_S)):
            number += 1
            cache = StateCache()
            with suppress(StateCacheError):
                cache.get(f"runs/{number % 3}", timeout=1)
            if number % 2:
                cache.close()
            del cache


def _frames(error: BaseException) -> list[FrameSummary]:
    """Return where an error comes from, and what it came in the middle of: the innermost frames first."""
    chain = [error, *([error.__context__] if error.__context__ is not None else [])]
    return [frame for one in chain for frame in extract_tb(one.__traceback__)[-6:][::-1]]


def _status(child: int) -> int:
    """Wait for a child's end, kill one that hangs, and return the exit status."""
    end = monotonic() + CHILD_S
    waiting = threading.Event()
    while monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        waiting.wait(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def left_behind(descriptors: int) -> list[str]:
    """Return what of the library is left after its clients are closed or gone.

    A thread that ended before it ran, as where a signal handler raises in its `start`, is listed by `threading` for
    ever, and runs nowhere; one that did not begin cannot be waited for.
    """
    end = monotonic() + THREADS_END_S
    gc.collect()
    for thread in threading.enumerate():
        if thread.name in OURS and thread.is_alive():
            thread.join(max(end - monotonic(), 0.01))
    gc.collect()
    frames = sys._current_frames()
    left = [
        f"thread {thread.name}, which is at\n" + "".join(format_stack(frames[thread.ident]))
        for thread in threading.enumerate()
        if thread.name in OURS and thread.ident in frames
    ]
    more = len(os.listdir("/proc/self/fd")) - descriptors
    return [*left, *([f"{more} descriptors"] if more > 0 else [])]


def main(arguments: list[str]) -> int:
    """Run one process of the soak; return the exit status."""
    folder, name, seed, sessions = arguments
    faulthandler.enable()
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    sys.setswitchinterval(SWITCH_S)
    with Soak(Path(folder), name, int(seed), int(sessions)) as soak:
        soak.run()
        failures = [*soak.failures, *soak.lent()]
    del soak
    for failure in (told := [*failures, *left_behind(descriptors)]):
        sys.stderr.write(f"{failure}\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
