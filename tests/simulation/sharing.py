"""The part of the machine in which clients share what all of them depend on: connections, policies, and types.

connections    many transactions are open at once, and each of them needs another connection to get on
policies       a namespace whose locks are enforced: nobody writes past the holder, whatever he knows of it
types          what a newer release has written is updated with the type of an older one
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from statecache import AsyncStateCache, CodecError, LockHeld, SchemaNewer
from tests.simulation.expectation import Change
from tests.simulation.refusals import CLIENTS, Refusals

INSIDE_S = 2.0
"""Within this time of its beginning a write has to be done that is made inside of a transaction."""
WHOLE_S = 8.0
TTL_S = 30.0
KEPT = st.sampled_from(("kept/1", "kept/2"))


class Older(msgspec.Struct):
    """What an older release knows of a value."""

    count: int


class Newer(msgspec.Struct):
    """What a newer release has made of it, under the same name."""

    count: int
    extra: int


Newer.__qualname__ = Older.__qualname__


class Labelled(Older):
    """What is an Older, and more."""

    label: int


class Sharing(Refusals):
    """The rules of what clients share."""

    @rule()
    def write_in_many_transactions(self) -> None:
        self.run(self._write_in_many(self.clients[0]))

    async def _write_in_many(self, client: AsyncStateCache) -> None:
        async def one(number: int) -> None:
            outer, inner = f"many/{number}", f"many/{number}/inner"
            async with client.transaction(outer, timeout=WHOLE_S) as tx:
                tx.set(outer, value := next(self.values))
                await tx.get(outer)
                await self._set(client, inner, timeout=INSIDE_S)
            self.expected.took(outer, "set", value, tx.states[outer])

        async with asyncio.TaskGroup() as tasks:
            for number in range(client.settings.redis_connections_max):
                tasks.create_task(one(number))

    @rule(who=CLIENTS, key=KEPT)
    def write_past_a_holder(self, who: int, key: str) -> None:
        self.run(self._write_past(self.clients[who], self.clients[1 - who], key))

    async def _write_past(self, client: AsyncStateCache, other: AsyncStateCache, key: str) -> None:
        namespace, _, name = key.partition("/")
        async with client.namespace(namespace, locking="enforced").lock(name, ttl=TTL_S) as lease:
            with pytest.raises(LockHeld):
                await other.set(key, next(self.values))
            value = next(self.values)
            self.expected.took(key, "set", value, await lease.set(name, value))
        await self._set(other, key)

    @rule(who=CLIENTS, number=st.integers(0, 3))
    def update_what_is_newer(self, who: int, number: int) -> None:
        self.run(self._update_newer(self.clients[who], f"typed/{number}"))

    async def _update_newer(self, client: AsyncStateCache, key: str) -> None:
        value = Newer(next(self.values), next(self.values))
        namespace, _, name = key.partition("/")
        state = await client.namespace(namespace, type=Newer).set(name, value)
        self.expected.applied(key, Change("set", msgspec.to_builtins(value), state.change_id))
        with pytest.raises(SchemaNewer):
            await client.update(key, lambda found: found, type=Older)

    @rule(who=CLIENTS, number=st.integers(0, 3))
    def set_what_would_lose_something(self, who: int, number: int) -> None:
        self.run(self._set_losing(self.clients[who], f"typed/{number}"))

    async def _set_losing(self, client: AsyncStateCache, key: str) -> None:
        namespace, _, name = key.partition("/")
        with pytest.raises(CodecError):
            await client.namespace(namespace, type=list[Older]).set(name, [Labelled(next(self.values), 1)])
