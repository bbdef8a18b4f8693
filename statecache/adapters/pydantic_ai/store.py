"""The store: the primitives that Pydantic AI asks of one."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

from statecache import Settings
from statecache.adapters.clients import settings_of
from statecache.adapters.event_loops import Client, LoopClients, OnEventLoops, alone
from statecache.adapters.items import given
from statecache.adapters.pydantic_ai.documents import OF, Head, entry_of, place_of, read, record_of, refuse_scope
from statecache.adapters.pydantic_ai.log import Logs
from statecache.adapters.segments import refuse_parted, spelled_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache import AsyncStateCache, Durability, State

NAMESPACE = "pydantic-ai"
_CLOCKS_APART = timedelta(minutes=1)
_READ_MORE = 20


class StateCacheConversationStore(OnEventLoops, ConversationStore):
    """A conversation store of Pydantic AI on statecache: conversations are hot in Redis, and durable in Postgres.

    `cache` is an `AsyncStateCache`, which any number of stores may share, or `Settings`; without it settings come from
    STATECACHE_* variables. On settings the store makes a client of its own for each event loop, and closes it: use it
    as a context manager, or call `close`. A client that is given stays open. `namespace` is that of all its states.
    `durability` is when a save counts as written, the setting without it.

    A save is one commit. `delete` takes a conversation's messages with it, and those that forks share stay with these;
    what was there stays in the history, until `erase` of the group. What statecache raises is raised, beside
    `ConversationConflict`: `OutcomeUnknown` where nobody knows whether a save was applied, `CodecError` for a message
    that is no JSON, `LimitExceeded` for one above 8 MiB, or for more than 16 MiB of them in one save of a conversation
    that is there already.
    """

    def __init__(
        self,
        cache: AsyncStateCache | Settings | None = None,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
    ) -> None:
        refuse_parted(namespace, "a conversation")
        self._namespace = namespace
        on, policy = Settings() if cache is None else cache, {"durability": durability}
        self._clients = LoopClients(on, namespace, policy, of="store", run_sync="asyncio.run around each call")

    @classmethod
    def from_url(
        cls,
        *,
        url: str | None = None,
        postgres_url: str | None = None,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        **settings: Any,
    ) -> Self:
        """Return a store with clients of its own; `url` is that of Redis.

        What is not given comes from STATECACHE_* variables; every other setting may be given by its name.
        """
        return cls(settings_of(url, postgres_url, settings), namespace=namespace, durability=durability)

    @classmethod
    def from_settings(cls, settings: Settings | None = None, **options: Any) -> Self:
        """Return a store with clients of its own; `options` are those of the constructor."""
        return cls(settings, **options)

    def group_of(self, conversation_id: str) -> str:
        """Return the key of a conversation's group, as `rollback`, `checkpoint` and `erase` take it."""
        return f"{self._namespace}/{place_of(conversation_id).head}"

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation as it is now; None where there is none."""
        here, place = self._clients.here(), place_of(conversation_id)
        state = await here.view.get(place.head, read="primary")
        if state is None:
            return None
        return record_of(state, read(state, Head), conversation_id, self.group_of(conversation_id))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, those saved last first.

        With `limit` they are found by the clock of Redis, so that no more is read than it takes: a record counts as
        saved within a minute of what its process's clock says.
        """
        refuse_scope(scope)
        here = self._clients.here()
        if limit == 0:
            return []
        where = {"of": OF} if scope is None else {"of": OF, "scope": scope}
        most = None if limit is None else limit + _READ_MORE
        while True:
            states = [one async for one in here.view.list("", where=where, order="newest", limit=most)]
            found = sorted(map(self._listed, states), key=lambda one: one.updated_at, reverse=True)
            if limit is None or most is None or len(states) < most:
                return found[:limit]
            if found[limit - 1].updated_at > states[-1].updated_at + _CLOCKS_APART:
                return found[:limit]
            most *= 4

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Write a record and the entries that its history adds, in one commit.

        Raises ConversationConflict where somebody else was first, or what the history goes on from is gone.
        """
        here, entries = self._clients.on(record.conversation_id), [*new_entries]
        await alone(here, lambda: self._logs(here).write(record, entries, expected_revision))

    async def delete(self, conversation_id: str, *, scope: str | None = None) -> None:
        """Delete a conversation with its log; one that was saved with another scope than is named stays.

        Where there is none, what was left of one is deleted, whose process was killed while it deleted that.
        """
        while (record := await self.read_record(conversation_id)) is not None:
            if scope is not None and record.scope != scope:
                return
            with suppress(ConversationConflict):  # saved since: look again whose it is
                await self.delete_record(conversation_id, expected_revision=record.revision)
                return
        here = self._clients.on(conversation_id)
        await alone(here, lambda: self._logs(here).delete_remains(conversation_id))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record and all entries of its log; raise ConversationConflict where it is another one by now."""
        here = self._clients.on(conversation_id)
        await alone(here, lambda: self._logs(here).delete(conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; one whose id no record or entry of this store gave is looked for in all conversations."""
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one, or the last `limit` of them, from this process as far as it has them."""
        if head_id is None or (limit is not None and limit <= 0):
            return []
        group, lines = await self._logs(self._clients.here()).history(head_id, limit)
        return [entry_of(entry_id, line, group) for entry_id, line in lines]

    def _logs(self, here: Client) -> Logs:
        return Logs(here.view, self._namespace, bytes_max=here.bytes_max)

    def _listed(self, state: State[Any]) -> ConversationRecord:
        """Return a record by its state; one that was copied with its group is named as that is."""
        head: Head = read(state, Head)
        name, conversation_id = state.key.partition("/")[2], str(given(head.conversation_id))
        if place_of(conversation_id).head != name:
            conversation_id = spelled_out(name)
        return record_of(state, head, conversation_id, state.key)
