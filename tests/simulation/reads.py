"""The part of the machine in which clients read, and what they are given is what is current.

A gate that a restart has closed is opened by whoever writes, or by a worker. Until then a reader is given what Postgres
holds, or nothing: where Redis may hold more than that, or the reader has seen more.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from statecache import AsyncStateCache, Unavailable
from statecache.keys import KeySpace
from tests.simulation.expectation import Expectation
from tests.simulation.refusals import CLIENTS, GROUPS, KEYS, NAMES

T = TypeVar("T")
REFUSED_S = 0.7
"""How long a read may take that may be refused: a closed gate is waited for half a second."""


class Reads(RuleBasedStateMachine):
    """The rules of reads; the machine brings the rest."""

    raw: Any
    keys: KeySpace
    expected: Expectation
    clients: list[AsyncStateCache]
    run: Callable[[Coroutine[Any, Any, T]], T]
    evict: Callable[[str], None]
    _set: Callable[..., Coroutine[Any, Any, None]]
    _flush: Callable[[], Coroutine[Any, Any, None]]

    @rule(who=CLIENTS, key=KEYS)
    def get(self, who: int, key: str) -> None:
        self.run(self._get(self.clients[who], key))

    async def _get(self, client: AsyncStateCache, key: str) -> None:
        refusable = self._is_refusable(key)
        try:
            state = await client.get(key, timeout=REFUSED_S if refusable else None)
        except Unavailable:
            assert refusable
        else:
            self.expected.shows(key, state)

    def _is_refusable(self, key: str) -> bool:
        """Say whether the gate is closed behind which Redis may hold, or a client have seen, more than Postgres has."""
        replid = self.raw.hget(self.keys.meta(self.keys.shard(key)), "replid")
        closed = replid.decode() != self.raw.info("replication")["master_replid"]
        return closed and not self.expected.is_durable(key)

    @rule(key=KEYS, between=st.integers(1, 2), after=st.integers(0, 1))
    def read_slowly(self, key: str, between: int, after: int) -> None:
        """Between a reader's look into Postgres and its install others write, all is flushed, and the state evicted.

        It looks whether there is a state, and then, where there is one, reads it.
        """
        self.run(self._read_slowly(self.clients[0], key, between, after))

    async def _read_slowly(self, client: AsyncStateCache, key: str, between: int, after: int) -> None:
        await self._flush()
        self.evict(key)
        tip = self.expected.chain(key)[-1].change_id if self.expected.exists(key) else None
        postgres: Any = client._runtime.postgres
        fetch, looks = postgres.fetch_each, count()

        async def slowly(*args: Any, **more: Any) -> Any:
            rows = await fetch(*args, **more)
            if next(looks) < after:
                return rows
            postgres.fetch_each = fetch
            for _ in range(between):
                await self._set(self.clients[1], key)
            await self._flush()
            self.evict(key)
            return rows

        postgres.fetch_each = slowly
        state = await client.get(key)
        postgres.fetch_each = fetch  # where it looked but once
        # A client that has seen what was lost with its Redis reads again before it believes less.
        newest = self.expected.chain(key)[-1].change_id if self.expected.chain(key) else None
        assert (state.change_id if state else None) in (tip, newest)

    @rule(who=CLIENTS, group=st.sampled_from(GROUPS), newest=st.booleans())
    def list(self, who: int, group: str, newest: bool) -> None:
        self.run(self._list(self.clients[who], group, "newest" if newest else "key"))

    async def _list(self, client: AsyncStateCache, group: str, order: Any) -> None:
        refusable = any(self._is_refusable(group + name) for name in NAMES)
        limit_s = REFUSED_S if refusable else None
        try:
            found = {state.key: state async for state in client.list(group, order=order, timeout=limit_s)}
        except Unavailable:
            assert refusable
            return
        for key in (group + name for name in NAMES):
            self.expected.shows(key, found.pop(key, None))
        assert not found
