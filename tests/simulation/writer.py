"""One writer process of the chaos: sessions that use every verb on few keys, and note what they did and saw.

    python -m tests.simulation.writer FOLDER NAME SEED SESSIONS async|sync

Several sessions share one client. Each does one operation at a time, with keys, verb and level drawn from the seed;
what comes of it depends on the others. Every value names the operation that wrote it and, where it was computed from
another value, the operation that wrote that one, so a lost update shows in the chain.

SIGTERM ends the process when its operations have ended; SIGUSR1 lets no new one begin until SIGUSR2.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any, cast

from statecache import AsyncStateCache, StateCache
from statecache.errors import (
    AlreadyExists,
    Backpressure,
    DurabilityNotMet,
    DurabilityRefused,
    Forked,
    Lost,
    NotFound,
    OutcomeUnknown,
    Quarantined,
    StateCacheError,
    Unavailable,
    VersionConflict,
)
from statecache.history_errors import AlreadyCurrent, HistoryIncomplete, VersionNotFound
from statecache.model import ABSENT, PRESENT, State
from tests.simulation.history import Invoke, Kind, Modifier, Recorder, Seen, seen_of
from tests.simulation.history_verbs import VERBS as HISTORY_VERBS
from tests.simulation.history_verbs import HistoryVerbs
from tests.simulation.many_verbs import ManyVerbs, Work
from tests.simulation.modifier_verbs import MODIFIED, ModifierVerbs
from tests.simulation.modifier_verbs import VERBS as MODIFIER_VERBS
from tests.support.awaited import awaited

GROUPS = {
    "runs/1": ("runs/1", "runs/1/notes", "runs/1/plan"),
    "runs/2": ("runs/2", "runs/2/plan"),
    "runs/3": ("runs/3",),
    "users/a": ("users/a", "users/a/{x}:state:"),
}
KEYS = (*(key for group in GROUPS.values() for key in group), *MODIFIED)
KINDS_FILE = "kinds"
"""What is in a run's folder: the kinds of faults that it has."""
NEW = "new"
"""The namespace of keys that nobody else will ever use."""
REPEATS_MAX = 3
TIMEOUTS_S = (None, None, None, 0.3, 0.05)
"""How long a verb may take, in seconds; None is the setting."""
CANCELLED, CANCELLED_S = 0.04, 0.004
"""Which part of the operations is cancelled, and after how many seconds on average."""
PAUSE_S = 0.02
LEVELS = ("memory", "memory", "disk", "postgres")
SIZES = (0, 0, 0, 0, 300, 20_000)
TTLS_S = (None, None, None, None, None, None, 0.01, 0.3, 2.0, inf)
"""How long a state lasts that is written, in seconds; None is for ever, or as long as what it is written over."""
VERBS = {
    "get": 24, "set": 12, "compare": 14, "create": 6, "create_new": 5, "update": 12, "delete": 6, "transaction": 8,
    "transact": 8, "list": 4, "wait_durable": 5, "get_many": 4, "set_many": 4, "delete_many": 2, "commit": 6,
    "rename": 3, "copy": 3, "touch": 3, **MODIFIER_VERBS, **HISTORY_VERBS,
}  # fmt: skip

_REFUSED = (VersionConflict, AlreadyExists, NotFound, Forked, Quarantined, Lost)
_NOT_APPLIED = (Unavailable, Backpressure, DurabilityRefused, AlreadyCurrent, VersionNotFound, HistoryIncomplete)


class Session(ManyVerbs, ModifierVerbs, HistoryVerbs):
    """One session: operations one after the other; other profiles set other groups, verbs, levels and modes."""

    groups: Mapping[str, Sequence[str]] = GROUPS
    verbs: Mapping[str, int] = VERBS
    levels: Sequence[str] = LEVELS
    modes: Sequence[str] = ("primary", "local")
    ttls: Sequence[float | None] = TTLS_S
    repeats_unmet = False
    """Whether a write that did not reach its level is sent again under its change_id."""

    def __init__(self, cache: AsyncStateCache, recorder: Recorder, name: str, rng: Random, *, plain: bool) -> None:
        self._cache = cache
        self._recorder = recorder
        self._name = name
        self._rng = rng
        self._plain = plain
        self._keys = tuple(key for group in self.groups.values() for key in group)
        self._known: dict[str, State[Any]] = {}
        self._unknown: list[tuple[str, str]] = []

    async def step(self) -> None:
        """Do the next operation, whatever comes of it; now and then it is cancelled on its way."""
        verb = self._rng.choices([*self.verbs], weights=[*self.verbs.values()])[0]
        doing = getattr(self, f"_{verb}")(self._rng.choice(self._keys))
        if self._plain or self._rng.random() > CANCELLED:
            await doing
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rng.expovariate(1 / CANCELLED_S)):
                await doing

    # What sessions do.

    async def _get(self, key: str) -> None:
        mode: Any = self._rng.choice(self.modes)
        sent = self._begin("get", [key], "read", mode=mode)
        with self._noting(sent):
            state = await self._cache.get(key, read=mode, timeout=self._timeout())
            self._recorder.ok(sent, read=[self._seen(key, state)])

    async def _list(self, key: str) -> None:
        prefix = key.split("/")[0] + "/"
        sent = self._begin("list", [], "read")
        with self._noting(sent):
            order: Any = self._rng.choice(("key", "newest"))
            found = {state.key: state async for state in self._cache.list(prefix, order=order)}
            wanted = [name for name in self._keys if name.startswith(prefix)]
            self._recorder.ok(sent, read=[self._seen(name, found.get(name)) for name in wanted])

    async def _set(self, key: str) -> None:
        sent = self._begin("set", [key], "write", own_id=self._rng.random() < 0.5)
        await self._written(sent, self._value(sent), **self._lasting())

    async def _compare(self, key: str) -> None:
        known = self._known.get(key)
        if known is None or self._rng.random() < 0.5:
            await self._get(key)
            known = self._known.get(key)
        own_id = self._rng.random() < 0.5
        expected = ABSENT if known is None else known.change_id
        sent = self._begin("set", [key], "write", expected={key: expected}, own_id=own_id)
        before = ... if known is None else known.value
        await self._written(sent, self._value(sent, before), expected=None if known is None else known.change_id)

    async def _create(self, key: str) -> None:
        sent = self._begin("create", [key], "write", expected={key: ABSENT}, own_id=self._rng.random() < 0.5)
        await self._written(sent, self._value(sent), **self._lasting())

    async def _create_new(self, _: str) -> None:
        key = f"{NEW}/{self._name}-{self._rng.getrandbits(60):x}"
        sent = self._begin("create", [key], "write", expected={key: ABSENT})
        await self._written(sent, self._value(sent), assume_new=True, **self._lasting())

    async def _delete(self, key: str) -> None:
        sent = self._begin("delete", [key], "write", expected={key: PRESENT}, own_id=self._rng.random() < 0.5)
        await self._written(sent)

    async def _update(self, key: str) -> None:
        sent = self._begin("update", [key], "write")

        def change(before: Any) -> Any:
            return self._value(sent, before or None)

        more: dict[str, Any] = {"default": {}} if self._rng.random() < 0.7 else {}
        more |= self._lasting()
        with self._noting(sent):
            more |= {"reason": sent.tag, "durability": _level(sent), "timeout": self._timeout()}
            state = await self._cache.update(key, change, **more)
            self._wrote(sent, [state])

    async def _wait_durable(self, _: str) -> None:
        if not self._known:
            return
        state = self._rng.choice([*self._known.values()])
        sent = self._begin("wait_durable", [state.key], "confirm", change_id=state.change_id)
        with self._noting(sent):
            await self._cache.wait_durable(state)
            self._recorder.ok(sent, change_id=state.change_id)

    async def _transaction(self, key: str) -> None:
        await self._several(key, again=False)

    async def _transact(self, key: str) -> None:
        await self._several(key, again=True)

    async def _several(self, key: str, *, again: bool) -> None:
        """Read some keys of a group and write some of them, in one commit."""
        group = next(keys for keys in self.groups.values() if key in keys)
        names = self._rng.sample(group, self._rng.randint(1, len(group)))
        to_write = [name for name in names if self._rng.random() < 0.7]
        deletes = {name for name in to_write if self._rng.random() < 0.15}
        verb = "transact" if again else "transaction"
        sent = self._begin(verb, to_write or names, "write" if to_write else "read")
        work = Work(self, sent, names, to_write, deletes)
        more: dict[str, Any] = {"reason": sent.tag, "durability": _level(sent), "timeout": self._timeout()}
        with self._noting(sent, work.read):
            if again:
                await self._cache.transact(names, work.plainly if self._plain else work.run, **more)
            else:
                async with self._cache.transaction(*names, **more) as tx:
                    await work.run(tx)
            self._wrote(sent, [*work.tx.states.values()], work.read)

    # How it is noted.

    def _begin(
        self, verb: str, keys: list[str], kind: Kind, *, expected: dict[str, str] | None = None, own_id: bool = False,
        change_id: str = "", mode: str = "primary", modifiers: dict[str, Modifier] | None = None,
    ) -> Invoke:  # fmt: skip
        if own_id:
            change_id = f"{self._rng.getrandbits(96):024x}"
        level = self._rng.choice(self.levels) if kind == "write" else "memory"
        return self._recorder.invoke(
            self._name,
            verb,
            keys,
            kind=kind,
            change_id=change_id,
            expected=expected,
            modifiers=modifiers,
            mode=mode,
            level=level,
        )

    def _value(self, sent: Invoke, before: Any = ...) -> dict[str, Any]:
        value: dict[str, Any] = {"by": sent.tag, "pad": "x" * self._rng.choice(SIZES)}
        if before is not ...:
            value["after"] = before["by"] if before else ""
        return value

    async def _written(self, sent: Invoke, *given: Any, **more: Any) -> None:
        """Send a write of one key, and again under its change_id where its outcome is not known."""
        key, change_id = sent.keys[0], sent.change_id
        if change_id == "" or sent.verb == "delete" or sent.modifiers:
            more["reason"] = sent.tag
        for repeat in range(REPEATS_MAX):
            more["timeout"] = self._timeout()
            if change_id:
                more["change_id"] = change_id
            with self._noting(sent) as doubt:
                call = getattr(self._cache, sent.verb)
                state = await call(key, *given, durability=_level(sent), **more)
                if state is None:
                    self._recorder.fail(sent, NotFound(key), final=True, read=[Seen(key=key, op="absent")])
                else:
                    self._wrote(sent, [state])
            change_id = doubt.change_id
            if not change_id or repeat + 1 == REPEATS_MAX or self._rng.random() < 0.2:
                return
            sent = self._recorder.again(sent, change_id=change_id)

    def _lasting(self) -> dict[str, float]:
        ttl = self._rng.choice(self.ttls)
        return {} if ttl is None else {"ttl": ttl}

    def _timeout(self) -> float | None:
        return self._rng.choice(TIMEOUTS_S)

    def _wrote(self, sent: Invoke, states: list[State[Any]], read: list[Seen] | None = None) -> None:
        for state in states:
            self._known[state.key] = state
            if state.value is None or state.key.startswith(f"{NEW}/"):
                del self._known[state.key]
        self._recorder.ok(sent, written=[seen_of(state) for state in states], read=read or [])

    def _seen(self, key: str, state: State[Any] | None) -> Seen:
        if state is None:
            self._known.pop(key, None)
            return Seen(key=key, op="absent")
        self._known[key] = state
        return seen_of(state)

    def _noting(self, sent: Invoke, read: list[Seen] | None = None) -> Noting:
        noting = Noting(self._recorder, sent, [] if read is None else read, again=self.repeats_unmet)
        noting.unknown = self._unknown
        return noting


class Noting:
    """The journal's note of an operation that did not end well; `change_id` is set where it may be sent again."""

    def __init__(self, recorder: Recorder, sent: Invoke, read: list[Seen], *, again: bool = False) -> None:
        self._recorder = recorder
        self._sent = sent
        self._read = read
        self._again = again
        self.change_id = ""
        self.unknown: list[tuple[str, str]] = []

    def __enter__(self) -> Noting:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        recorder, sent = self._recorder, self._sent
        if isinstance(error, OutcomeUnknown):
            recorder.unknown(sent, error, change_id=error.change_id)
            self.change_id = error.change_id
            if (
                sent.kind == "write"
            ):  # a checkpoint is a state of its own; what goes back may leave the first key as it is
                self.unknown.append((error.change_id, error.keys[0]))
        elif isinstance(error, DurabilityNotMet):
            recorder.ok(sent, change_id=error.change_id, level="memory")
            self.change_id = error.change_id if self._again else ""
        elif isinstance(error, Lost) and sent.kind == "write":  # it was applied, and may have been seen
            recorder.unknown(sent, error, change_id=error.change_id)
        elif isinstance(error, _REFUSED):
            recorder.fail(sent, error, final=True, read=[*self._read, *_told(error)])
        elif isinstance(error, _NOT_APPLIED):
            recorder.fail(sent, error, final=False)
        elif isinstance(error, asyncio.CancelledError):
            recorder.unknown(sent, error)
            if sent.change_id:
                self.unknown.append((sent.change_id, sent.keys[0]))
            return False
        elif isinstance(error, StateCacheError):
            recorder.unknown(sent, error)  # the judge asks why there is such an error at all
        else:
            return False
        return True


def _told(error: StateCacheError) -> list[Seen]:
    if isinstance(error, VersionConflict) and error.actual:
        return [Seen(key=error.key, change_id=error.actual)]
    if isinstance(error, VersionConflict) and error.expected:  # it has ended
        return [Seen(key=error.key, op="absent")]
    if isinstance(error, AlreadyExists | NotFound):
        return [Seen(key=error.key, op="present" if isinstance(error, AlreadyExists) else "absent")]
    return []


def _level(sent: Invoke) -> Any:
    return cast("Any", sent.level)


class _Switches:
    """What signals have told the process."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.going = asyncio.Event()
        self.going.set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGUSR1, self.going.clear)
        loop.add_signal_handler(signal.SIGUSR2, self.going.set)

    def _end(self) -> None:
        self.ending.set()
        self.going.set()

    async def pause(self, seconds: float) -> None:
        """Wait that many seconds, or until the end, and then until operations may begin."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ending.wait()
        await self.going.wait()


async def _play(session: Session, switches: _Switches, rng: Random) -> None:
    while not switches.ending.is_set():
        await session.step()
        await switches.pause(rng.uniform(0, PAUSE_S))


async def write(
    folder: Path, name: str, seed: int, sessions: int, *, plain: bool, kind: type[Session] = Session
) -> None:
    """Run the sessions of one process until it is told to end."""
    switches = _Switches()
    with Recorder(folder / f"{name}.jsonl", name) as recorder:
        own: Any = StateCache() if plain else AsyncStateCache()
        cache = awaited(own) if plain else own
        async with asyncio.TaskGroup() as tasks:
            for number in range(sessions):
                rng = Random(f"{seed} {name} {number}")
                session = kind(cache, recorder, f"s{number}", rng, plain=plain)
                tasks.create_task(_play(session, switches, rng))
        await cache.close()


def main(arguments: list[str], session: type[Session] = Session) -> None:
    """Run one process of the chaos."""
    folder, name, seed, sessions, kind = arguments
    kinds = Path(folder, KINDS_FILE)
    if kinds.exists() and "swapped" in kinds.read_text().split():
        session.ttls = (None,)  # the release before does not know of them
        session.verbs = {
            verb: weight for verb, weight in session.verbs.items() if verb not in ("touch", *MODIFIER_VERBS)
        }
    asyncio.run(write(Path(folder), name, int(seed), int(sessions), plain=kind == "sync", kind=session))


if __name__ == "__main__":
    main(sys.argv[1:])
