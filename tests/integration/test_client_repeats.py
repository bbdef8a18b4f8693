"""Repeats in a corner: an attempt lost in EXEC, one that arrives while it is looked for, one long forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import pytest

from statecache import AsyncStateCache, OutcomeUnknown, Settings, State
from statecache.keys import KeySpace
from statecache_workers.worker import Worker
from tests.fixtures.faults import through
from tests.fixtures.flusher import flush
from tests.fixtures.servers import MakeClient, every_redis
from tests.support.fault_proxy import Fault, FaultProxy

KEY = "runs/42"
ACTOR = "the-unlucky"
MARK = ACTOR.encode()


async def _others(cache: AsyncStateCache) -> State[Any]:
    """Commit more often than a state remembers, and return the last state."""
    return [await cache.set(KEY, f"other {number}") for number in range(7)][-1]


async def _transaction(client: AsyncStateCache) -> State[Any]:
    async with client.transaction(KEY, actor=ACTOR) as tx:
        tx.set(KEY, "mine")
    state: State[Any] = tx.states[KEY]
    return state


@every_redis
async def test_a_lost_exec_that_the_state_no_longer_remembers_is_found_and_is_no_conflict(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    behind = make_client(through(settings, redis=proxy))
    await behind.set(KEY, 7)
    fault = proxy.arm("hold_reply", at=MARK)
    writing = asyncio.create_task(_transaction(behind))
    await fault.wait()
    last = await _others(cache)
    proxy.cut_all()
    written = await writing
    assert written.position is not None
    assert (written.version, written.position.n) == (2, 2)
    assert await cache.get(KEY) == last


Verb = Literal["set", "create", "delete", "increment"]


def _writing(cache: AsyncStateCache, verb: Verb) -> Coroutine[Any, Any, State[Any] | None]:
    if verb == "delete":
        return cache.delete(KEY, actor=ACTOR)
    if verb == "increment":
        return cache.increment(KEY, 100, actor=ACTOR)
    return (cache.create if verb == "create" else cache.set)(KEY, "mine", actor=ACTOR)


async def _hide(cache: AsyncStateCache, verb: Verb) -> State[Any] | None:
    """Commit as often again, and leave the key as the verb expects it."""
    if verb == "increment":
        return [await cache.increment(KEY) for _ in range(7)][-1]
    last = await _others(cache)
    return await cache.delete(KEY) if verb == "create" else last


class Stray:
    """A commit whose first attempt is held up while its repeat finds a state that has no memory of it."""

    def __init__(self, client: AsyncStateCache, cache: AsyncStateCache, proxy: FaultProxy, verb: Verb = "set") -> None:
        self._client = client
        self._cache = cache
        self._verb = verb
        self._attempt = proxy.arm("hold_request", at=MARK)

    async def send(self) -> None:
        """Start the commit, wait until its first attempt is under way, and let others write the state."""
        self._task = asyncio.create_task(_writing(self._client, self._verb))
        await self._attempt.wait()
        await _hide(self._cache, self._verb)

    async def lose(self, until: Fault) -> None:
        """Cut the first attempt off, and wait until the fault strikes that the repeat meets."""
        for link in self._client._runtime.redis.pool._idle.lent():
            await link.close()
        await until.wait()

    async def arrive(self) -> State[Any] | None:
        """Let the first attempt be applied, and return what others have written since."""
        self._attempt.release()
        await self._attempt.answered()
        return await _hide(self._cache, self._verb)

    async def outcome(self) -> State[Any]:
        """Return the commit's answer."""
        written = await self._task
        assert written is not None
        return written


@every_redis
@pytest.mark.parametrize(
    ("verb", "mine", "end"), [("set", 9, 16), ("create", 11, 19), ("delete", 9, 16), ("increment", 9, 16)]
)
async def test_an_attempt_that_arrives_while_it_is_looked_for_is_not_applied_twice(
    settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, postgres_proxy: FaultProxy, redis_raw: Any,
    keys: KeySpace, verb: Verb, mine: int, end: int,
) -> None:  # fmt: skip
    """Neither the stream nor Postgres had it when they were asked, and the state has forgotten it once more."""
    async with AsyncStateCache(settings=through(settings, redis=proxy, postgres=postgres_proxy)) as behind:
        await behind.set(KEY, 7)
        if verb == "create":
            await behind.delete(KEY)
        stray = Stray(behind, cache, proxy, verb)
        await stray.send()
        search = postgres_proxy.arm("hold_request", at=b"quarantine")
        await stray.lose(until=search)
        last = await stray.arrive()
        search.release()
        written = await stray.outcome()
    assert last is not None
    assert (written.version, last.version) == (mine, end)
    assert redis_raw.xlen(keys.changes(keys.shard(KEY))) == end
    assert await cache.get(KEY) == (None if verb == "create" else last)
    if verb == "increment":
        assert (written.value, last.value) == (7 + 7 + 100, 7 + 7 + 100 + 7)


@every_redis
async def test_a_state_that_is_evicted_while_its_change_is_looked_for_is_no_proof(
    settings: Settings, cache: AsyncStateCache, proxy: FaultProxy, postgres_proxy: FaultProxy, worker: Worker,
    redis_raw: Any, keys: KeySpace,
) -> None:  # fmt: skip
    """There is nothing to go on from, so what arrives during the search would not show either."""
    async with AsyncStateCache(settings=through(settings, redis=proxy, postgres=postgres_proxy)) as behind:
        await behind.set(KEY, 7)
        stray = Stray(behind, cache, proxy)
        await stray.send()
        look = proxy.arm("hold_request", at=b"change_id\r\n$2\r\nop\r\n")
        await stray.lose(until=look)
        await flush(worker)
        redis_raw.unlink(keys.state(KEY))
        search = postgres_proxy.arm("hold_request", at=b"quarantine")
        look.release()
        await search.wait()
        await cache.get(KEY)
        last = await stray.arrive()
        search.release()
        written = await stray.outcome()
    assert last is not None
    assert (written.version, last.version) == (9, 16)
    assert await cache.get(KEY) == last


@every_redis
async def test_a_repeat_whose_parent_is_still_the_tip_needs_no_postgres(
    make_client: MakeClient, settings: Settings, proxy: FaultProxy, postgres_proxy: FaultProxy
) -> None:
    """The state remembers too little to tell by itself, but had the change been applied it would not be the tip."""
    behind = make_client(through(settings, redis=proxy, postgres=postgres_proxy))
    last = await _others(behind)
    postgres_proxy.refusing = True
    postgres_proxy.cut_all()
    fault = proxy.arm("drop_request", at=MARK)
    written = await behind.set(KEY, "mine", expected=last, actor=ACTOR)
    assert fault.struck
    assert (written.version, written.parent_change_id) == (8, last.change_id)


@every_redis
async def test_a_write_of_unknown_outcome_may_be_repeated_long_after(
    make_client: MakeClient, settings: Settings, cache: AsyncStateCache, proxy: FaultProxy
) -> None:
    behind = make_client(through(settings, redis=proxy))
    first = await behind.set(KEY, 7)
    fault = proxy.arm("drop_reply", at=MARK)
    fault.then(lambda: setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown) as caught:
        await behind.set(KEY, "mine", actor=ACTOR, timeout=1.0)
    last = await _others(cache)
    proxy.refusing = False
    again = await behind.set(KEY, "mine", change_id=caught.value.change_id)
    assert (again.version, again.parent_change_id) == (2, first.change_id)
    assert await cache.get(KEY) == last
