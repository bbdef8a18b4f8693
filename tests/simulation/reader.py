"""One process of the coherence run: sessions that share a client, read in every mode, write, and note it all.

    python -m tests.simulation.reader FOLDER NAME SEED SESSIONS async|sync

The sessions of an asynchronous client are tasks of one loop; those of a synchronous one are threads, each with a loop
of its own in which nothing else runs. They read far more than they write, some keys more often than others, and what
they have just written they often read at once. Every value names its key and the operation that wrote it.

What a process has written it tells the others through a board in shared memory, as agents hand over a version in a
message: `min_version=` asks for versions from there.

An answer at once is one for which the loop did not turn, or the thread neither let go of the processor nor missed the
near cache. SIGTERM ends the process when its operations have ended; its last line says what its near cache has counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import resource
import signal
import struct
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec

from statecache import AsyncStateCache, StateCache
from statecache.errors import NotFound
from statecache.model import State
from tests.simulation.history import Invoke, Recorder, Seen, seen_of
from tests.simulation.writer import Noting

KEYS = tuple(f"notes/{number}" for number in range(100))
PROCESSES = ("p0", "p1", "p2", "p3")
SYNC_PROCESSES = ("p1", "p3")
VERBS = {"local": 56, "max_stale": 12, "min_version": 10, "primary": 10, "set": 12, "update": 5, "delete": 2}
STALE_S = (0.0, 0.05, 0.3, 0.7, 5.0)
"""What reads ask for as the greatest age, in seconds."""
NEAR_VERBS = {"local": 50, "max_stale": 30, "min_version": 20}
"""What hasty sessions do: every other one does nothing but read what is near."""
TIMEOUTS_S = (None, 0.3)
HASTY_TIMEOUT_S = 0.05
"""How long an operation may take; None is the setting. Who is hasty gives up soon, and goes on to what is near."""
PAUSE_S = 0.012
AGAIN = 0.5
"""How often what was written is read at once by the same session."""
SKEW = 2.0
SIZES = (0, 40, 1_000)
_SLOT = struct.Struct("=q")

Answer = tuple[State[Any] | None, bool]
"""What a read gives, and whether it was answered at once."""


class Board:
    """Memory that all processes share: the highest version of each key that each has had acknowledged."""

    def __init__(self, path: Path, process: str) -> None:
        self._own = PROCESSES.index(process.partition("-")[0])
        size = len(PROCESSES) * len(KEYS) * _SLOT.size
        with path.open("a+b") as file:
            file.truncate(size)  # all of the same size, whoever is the first
            self._memory = mmap.mmap(file.fileno(), size)

    def tell(self, key: str, version: int) -> None:
        """Publish an acknowledged version."""
        at = self._at(self._own, key)
        if version > _SLOT.unpack_from(self._memory, at)[0]:
            _SLOT.pack_into(self._memory, at, version)

    def told(self, key: str) -> int:
        """Return the highest version that anybody knows to be committed, or 0."""
        slots = (self._at(process, key) for process in range(len(PROCESSES)))
        return max(int(_SLOT.unpack_from(self._memory, at)[0]) for at in slots)

    def _at(self, process: int, key: str) -> int:
        return (process * len(KEYS) + KEYS.index(key)) * _SLOT.size


class Tasks:
    """A client that tasks of one loop share."""

    def __init__(self, cache: AsyncStateCache) -> None:
        self.cache: Any = cache

    async def get(self, key: str, more: dict[str, Any]) -> Answer:
        """Read; return the state, and whether that took no turn of the loop."""
        turned: list[bool] = []
        turning = asyncio.get_running_loop().call_soon(turned.append, True)
        state = await self.cache.get(key, **more)
        turning.cancel()
        return state, not turned

    async def call(self, verb: str, *args: Any, **more: Any) -> Any:
        """Call a verb that writes."""
        return await getattr(self.cache, verb)(*args, **more)


class Threads:
    """A client that threads share."""

    def __init__(self, cache: StateCache) -> None:
        self.cache: Any = cache

    async def get(self, key: str, more: dict[str, Any]) -> Answer:
        """Read; return the state, and whether the thread never waited and no read here missed the near cache."""
        before = _waits(), self.cache.near.misses
        state = self.cache.get(key, **more)
        return state, (_waits(), self.cache.near.misses) == before

    async def call(self, verb: str, *args: Any, **more: Any) -> Any:
        """Call a verb that writes."""
        return getattr(self.cache, verb)(*args, **more)


def _waits() -> int:
    """Return how often this thread has waited for something (its voluntary context switches)."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class Session:
    """One session: operations one after the other."""

    def __init__(
        self, client: Tasks | Threads, recorder: Recorder, board: Board, name: str, rng: Random, *, hasty: bool
    ) -> None:
        self._client = client
        self._verbs = NEAR_VERBS if hasty else VERBS
        self._timeouts_s = (HASTY_TIMEOUT_S,) if hasty else TIMEOUTS_S
        self._recorder = recorder
        self._board = board
        self._name = name
        self._rng = rng

    async def step(self) -> None:
        """Do the next operation, whatever comes of it."""
        rng = self._rng
        verb = rng.choices([*self._verbs], weights=[*self._verbs.values()])[0]
        key = KEYS[int(rng.random() ** SKEW * len(KEYS))]
        if verb in ("set", "update", "delete"):
            await getattr(self, f"_{verb}")(key)
            if rng.random() < AGAIN:
                await self._read(key, "local")
        else:
            await self._read(key, verb)

    async def _read(self, key: str, verb: str) -> None:
        more: dict[str, Any] = {"read": "primary" if verb == "primary" else "local", "timeout": self._timeout()}
        stale_s, version_min = None, 0
        if verb == "max_stale":
            stale_s = more["max_stale"] = self._rng.choice(STALE_S)
        elif verb == "min_version" and (version_min := self._board.told(key)):
            more["min_version"] = version_min
        sent = self._recorder.invoke(
            self._name, f"get {verb}", [key], kind="read", mode=more["read"], stale_s=stale_s, version_min=version_min
        )
        with Noting(self._recorder, sent, []):
            state, at_once = await self._client.get(key, more)
            seen = Seen(key=key, op="absent") if state is None else seen_of(state)
            self._recorder.ok(sent, read=[seen], at_once=at_once and verb != "primary")

    async def _set(self, key: str) -> None:
        sent = self._recorder.invoke(self._name, "set", [key], kind="write")
        with Noting(self._recorder, sent, []):
            self._wrote(sent, await self._client.call("set", key, self._value(sent), **self._how(sent)))

    async def _update(self, key: str) -> None:
        sent = self._recorder.invoke(self._name, "update", [key], kind="write")

        def change(before: Any) -> Any:
            return self._value(sent, before or None)

        with Noting(self._recorder, sent, []):
            self._wrote(sent, await self._client.call("update", key, change, default={}, **self._how(sent)))

    async def _delete(self, key: str) -> None:
        sent = self._recorder.invoke(self._name, "delete", [key], kind="write")
        with Noting(self._recorder, sent, []):
            state = await self._client.call("delete", key, **self._how(sent))
            if state is None:
                self._recorder.fail(sent, NotFound(key), final=True)
            else:
                self._wrote(sent, state)

    def _timeout(self) -> float | None:
        return self._rng.choice(self._timeouts_s)

    def _how(self, sent: Invoke) -> dict[str, Any]:
        return {"reason": sent.tag, "timeout": self._timeout()}

    def _value(self, sent: Invoke, before: Any = ...) -> dict[str, Any]:
        value: dict[str, Any] = {"key": sent.keys[0], "by": sent.tag, "pad": "x" * self._rng.choice(SIZES)}
        if before is not ...:
            value["after"] = before["by"] if before else ""
        return value

    def _wrote(self, sent: Invoke, state: State[Any]) -> None:
        self._recorder.ok(sent, written=[seen_of(state)])
        self._board.tell(state.key, state.version)


class Ending:
    """The request to end, which sessions look at after every pause; pauses are short."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def __call__(self) -> None:
        self._told.set()

    async def play(self, session: Session, rng: Random) -> None:
        """Let a session go on until the end."""
        while not self._told.is_set():
            try:
                await session.step()
            except BaseException:
                self._told.set()  # the process ends, with what went wrong
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0, PAUSE_S)):
                    await asyncio.Event().wait()


class Process:
    """Everything that one process does."""

    def __init__(self, folder: Path, name: str, seed: int, sessions: int) -> None:
        self._recorder = Recorder(folder / f"{name}.jsonl", name)
        self._board = Board(folder / "board", name)
        self._name = name
        self._seed = seed
        self._sessions = sessions
        self._ending = Ending()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._recorder.__exit__()

    def _plays(self, client: Tasks | Threads) -> list[Coroutine[Any, Any, None]]:
        plays = []
        for number in range(self._sessions):
            rng = Random(f"{self._seed} {self._name} {number}")
            hasty = number % 2 == 1
            session = Session(client, self._recorder, self._board, f"s{number}", rng, hasty=hasty)
            plays.append(self._ending.play(session, rng))
        return plays

    async def tasks(self) -> None:
        """Run the sessions as tasks."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._ending)
        async with AsyncStateCache() as cache:
            await asyncio.gather(*self._plays(Tasks(cache)))
            _tell(cache)

    def threads(self) -> None:
        """Run the sessions in threads."""
        signal.signal(signal.SIGTERM, lambda *_: self._ending())
        with StateCache() as cache:
            with ThreadPoolExecutor(self._sessions) as pool:
                playing = [pool.submit(asyncio.run, play) for play in self._plays(Threads(cache))]
            for one in playing:
                one.result()
            _tell(cache)


def _tell(cache: Any) -> None:
    sys.stdout.write(msgspec.json.encode({"near": cache.near}).decode() + "\n")


def main(arguments: list[str]) -> None:
    """Run one process of the coherence run."""
    folder, name, seed, sessions, kind = arguments
    with Process(Path(folder), name, int(seed), int(sessions)) as process:
        if kind == "sync":
            process.threads()
        else:
            asyncio.run(process.tasks())


if __name__ == "__main__":
    main(sys.argv[1:])
