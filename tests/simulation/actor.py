"""An agent that notes what it does: every verb goes into its journal before it is sent, and its end after it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any

from statecache import AsyncStateCache, State
from statecache.errors import (
    AlreadyExists,
    DurabilityNotMet,
    Forked,
    LeaseLost,
    LockTimeout,
    Lost,
    NotFound,
    OutcomeUnknown,
    Quarantined,
    StaleToken,
    StepUnknown,
    Unavailable,
    VersionConflict,
)
from statecache.history_errors import AlreadyCurrent, HistoryIncomplete, VersionNotFound
from statecache.model import ABSENT, PRESENT
from tests.simulation.history import Invoke, Recorder, Seen, seen_of

_REFUSED = (VersionConflict, AlreadyExists, NotFound, Forked, Quarantined, StaleToken, StepUnknown, Lost)
_NOT_APPLIED = (Unavailable, LeaseLost, LockTimeout, AlreadyCurrent, HistoryIncomplete, VersionNotFound)
LOCK_TTL_S = 1.0
"""How long a lock of a holder that died stands."""


class Actor:
    """One client in one session; an error that its verbs may raise under faults ends the verb, any other is raised."""

    def __init__(self, cache: AsyncStateCache, recorder: Recorder, session: str) -> None:
        self.cache = cache
        self._recorder = recorder
        self._session = session
        self._numbers = count(1)

    @cached_property
    def between(self) -> Actor:
        """Another session of the same client, for what is done while a verb is under way."""
        return Actor(self.cache, self._recorder, f"{self._session}-between")

    def beside(self, cache: AsyncStateCache) -> Actor:
        """Return the session of another client."""
        return Actor(cache, self._recorder, f"{self._session}-beside")

    async def get(self, key: str, *, mode: Any = "primary") -> State[Any] | None:
        """Read a key."""
        with self._noted("get", key, kind="read", mode=mode) as sent:
            state = await self.cache.get(key, read=mode)
            self._recorder.ok(sent, read=[_seen(key, state)])
            return state
        return None

    async def get_many(self, keys: tuple[str, ...]) -> None:
        """Read many keys at once."""
        with self._noted("get_many", *keys, kind="read") as sent:
            found = await self.cache.get_many(keys, read="primary")
            self._recorder.ok(sent, read=[_seen(key, found[key]) for key in keys])

    async def list(self, prefix: str, keys: tuple[str, ...], order: Any) -> None:
        """List a prefix, under which only these keys are looked for."""
        with self._noted("list", *keys, kind="read") as sent:
            found = {state.key: state async for state in self.cache.list(prefix, order=order)}
            self._recorder.ok(sent, read=[_seen(key, found.get(key)) for key in keys])

    async def set(
        self, key: str, *, level: Any = "memory", expected: State[Any] | None = None, change_id: str = ""
    ) -> State[Any] | None:
        """Write a value that nobody else writes; return the state where it is known to be applied, else None."""
        expecting = {key: expected.change_id} if expected is not None else {}
        compared = expected if expected is not None else ...
        with self._noted("set", key, level=level, expected=expecting, change_id=change_id) as sent:
            return self._wrote(
                sent,
                await self.cache.set(
                    key, self._value(sent), durability=level, expected=compared, reason=sent.tag,
                    change_id=change_id or None,
                ),
            )  # fmt: skip
        return None

    async def set_again(self, key: str, change_id: str, between: int) -> None:
        """Repeat a write under its change_id after `between` other writes: it is applied once."""
        with self._noted("set", key, change_id=change_id) as sent:
            value = self._value(sent)
            await self.cache.set(key, value, change_id=change_id, reason=sent.tag)
            for _ in range(between):
                await self.between.set(key)
            self._wrote(sent, await self.cache.set(key, value, change_id=change_id, reason=sent.tag))

    async def count(self, key: str) -> None:
        """Add one to a number."""
        with self._noted("increment", key, modifiers={key: ("increment", 1)}) as sent:
            self._wrote(sent, await self.cache.increment(key, reason=sent.tag))

    async def count_again(self, key: str, change_id: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        """Repeat an increment under its change_id, after what is done meanwhile: it counts once."""
        with self._noted("increment", key, change_id=change_id, modifiers={key: ("increment", 5)}) as sent:
            await self.cache.increment(key, 5, change_id=change_id, reason=sent.tag)
            await meanwhile()
            self._wrote(sent, await self.cache.increment(key, 5, change_id=change_id, reason=sent.tag))

    async def create(self, key: str, *, assume_new: bool = False) -> None:
        """Create a key."""
        with self._noted("create", key, expected={key: ABSENT}) as sent:
            value = self._value(sent)
            self._wrote(sent, await self.cache.create(key, value, assume_new=assume_new, reason=sent.tag))

    async def update(self, key: str) -> None:
        """Read, compute and write."""
        with self._noted("update", key) as sent:

            def changed(before: Any) -> Any:
                return self._value(sent) | {"after": before.get("by", "")}

            self._wrote(sent, await self.cache.update(key, changed, default={}, reason=sent.tag))

    async def delete(self, key: str) -> None:
        """Delete a key."""
        with self._noted("delete", key, expected={key: PRESENT}) as sent:
            state = await self.cache.delete(key, reason=sent.tag)
            if state is None:
                raise NotFound(key)
            self._wrote(sent, state)

    async def transaction(
        self, *keys: str, write: tuple[str, ...] = (), meanwhile: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Read the keys in a transaction, await `meanwhile`, and write some of them at its end."""
        with self._noted("transaction", *(write or keys), kind="write" if write else "read") as sent:
            async with self.cache.transaction(*keys, reason=sent.tag) as tx:
                read = [_seen(key, await tx.get(key)) for key in keys]
                for key in write:
                    tx.set(key, self._value(sent))
                if meanwhile is not None:
                    await meanwhile()
            self._recorder.ok(sent, written=[seen_of(state) for state in tx.states.values()], read=read)

    async def counted(self, key: str) -> None:
        """Read by a lease of the key and write what follows from that: nobody else writes in between."""
        with self._noted("lock", key, kind="ask") as taken:
            async with self.cache.lock(key, ttl=LOCK_TTL_S, timeout=2 * LOCK_TTL_S) as lease:
                self._recorder.ok(taken)
                with self._noted("get", key, kind="read") as sent:
                    before = await lease.get(key)
                    self._recorder.ok(sent, read=[_seen(key, before)])
                    with self._noted("set", key) as sent:
                        value = self._value(sent) | {"after": "" if before is None else before.value["by"]}
                        self._wrote(sent, await lease.set(key, value, reason=sent.tag))

    async def step(self, key: str, name: str, function: Callable[[Any], Awaitable[str]]) -> None:
        """Run a step, or get its result from whoever has run it."""
        with self._noted("step", f"{key}/steps/{name}", kind="ask") as sent:
            self._recorder.ok(sent, verdict=await self.cache.step(key, name, function))

    async def follow(self, key: str) -> None:
        """Read changes, as a named reader and as a page do, until a durable write of this session has come."""
        state = await self.set(key, level="postgres")
        if state is None:
            return
        prefix, given = f"{key.partition('/')[0]}/", dict[str, int]()
        with self._noted("changes", key, kind="ask") as sent:
            async with self.cache.changes(prefix, consumer=f"{sent.tag}-{secrets.token_hex(4)}") as feed:
                async for change in feed:
                    assert given.get(change.key, 0) < change.version, f"{change} came behind {given[change.key]}"
                    given[change.key] = change.version
                    if given.get(key, 0) >= state.version:
                        break
            async with self.cache.watch(prefix, initial=True) as page:
                async for change in page:
                    assert given.get(change.key, 0) <= change.version, f"{change} came behind {given[change.key]}"
                    if change.key == key:
                        break
            self._recorder.ok(sent)

    async def back(self, key: str, version: int) -> None:
        """Go back to a version of a key."""
        with self._noted("rollback", key) as sent:
            self._wrote(sent, await self.cache.rollback(key, version, reason=sent.tag))

    async def branch(self, key: str) -> None:
        """Begin a branch of a key, and wait until Postgres holds it."""
        to = f"new/{secrets.token_hex(6)}"
        with self._noted("branch", to, level="postgres", expected={to: ABSENT}) as sent:
            self._wrote(sent, await self.cache.branch(key, to, reason=sent.tag, durability="postgres"))

    async def insist(self, key: str) -> None:
        """Write durably, again until that is known to have worked."""
        while await self.set(key, level="postgres") is None:
            pass

    async def confirm(self, state: State[Any] | None) -> None:
        """Wait until a change is durable."""
        if state is None:
            return
        with self._noted("wait_durable", state.key, kind="confirm", change_id=state.change_id) as sent:
            await self.cache.wait_durable(state)
            self._recorder.ok(sent, change_id=state.change_id)

    def _value(self, sent: Invoke) -> dict[str, Any]:
        return {"by": sent.tag, "number": next(self._numbers)}

    def _wrote(self, sent: Invoke, state: State[Any]) -> State[Any]:
        self._recorder.ok(sent, written=[seen_of(state)])
        return state

    @contextmanager
    def _noted(
        self, verb: str, *keys: str, kind: Any = "write", level: str = "memory", mode: str = "primary", **more: Any
    ) -> Iterator[Invoke]:
        recorder = self._recorder
        sent = recorder.invoke(self._session, verb, keys, kind=kind, mode=mode, level=level, **more)
        try:
            yield sent
        except OutcomeUnknown as error:
            recorder.unknown(sent, error, change_id=error.change_id)
        except DurabilityNotMet as error:
            recorder.ok(sent, change_id=error.change_id, level="memory")
        except _REFUSED as error:
            recorder.fail(sent, error, final=True, read=_told(error))
        except _NOT_APPLIED as error:
            recorder.fail(sent, error, final=False)


def _seen(key: str, state: State[Any] | None) -> Seen:
    return Seen(key=key, op="absent") if state is None else seen_of(state)


def _told(error: Exception) -> list[Seen]:
    if isinstance(error, VersionConflict) and error.actual:
        return [Seen(key=error.key, change_id=error.actual)]
    if isinstance(error, AlreadyExists | NotFound):
        return [Seen(key=error.key, op="present" if isinstance(error, AlreadyExists) else "absent")]
    return []
