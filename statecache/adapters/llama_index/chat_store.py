"""The chat store: the methods that LlamaIndex calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from llama_index.core.bridge.pydantic import BaseModel, Field, PrivateAttr
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base import BaseChatStore

from statecache import Settings
from statecache.adapters.clients import Clients, OnClients, servers_of, settings_again, settings_of
from statecache.adapters.llama_index.chats import (
    OF,
    added,
    deleted,
    inserted,
    key_of,
    message_data,
    messages_of,
    place_of,
    replaced,
    taken,
)
from statecache.adapters.plans import Plan, call
from statecache.adapters.segments import refuse_parted

if TYPE_CHECKING:
    from statecache import AsyncStateCache, Durability, StateCache

NAMESPACE = "llama-index-chat"


class StateCacheChatStore(OnClients, BaseChatStore):
    """A chat store of LlamaIndex on statecache: what chats hold is hot in Redis, and durable in Postgres.

    `cache` is a `StateCache`, an `AsyncStateCache`, or `Settings`; without it settings come from STATECACHE_*
    variables. On settings the store makes clients of its own, for threads and for each event loop, and closes them:
    use it as a context manager, with `async` or without, or call `close` or `aclose`. A client that is given stays
    open. `namespace` is that of all its states. `durability` is when a change counts as written, the setting without
    it. One that LlamaIndex makes again from its fields stands on settings of the environment: `servers` says whether
    these name the servers that it stood on.

    What statecache raises is raised: `VersionConflict` where a commit could not be had against many others,
    `OutcomeUnknown` where nobody knows whether it was applied, `CodecError` for a message that is no JSON, and
    `LimitExceeded` for one above 8 MiB, or a change of more than 16 MiB.
    """

    namespace: str = Field(default=NAMESPACE, description="The namespace of all states.")
    durability: str | None = Field(default=None, description="When a change counts as written.")
    servers: str | None = Field(default=None, description="A digest of the servers that it stands on.")
    _clients: Clients = PrivateAttr()
    _bytes_max: int = PrivateAttr()

    def __init__(
        self,
        cache: StateCache | AsyncStateCache | Settings | None = None,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        servers: str | None = None,
    ) -> None:
        refuse_parted(namespace, "a chat")
        on = settings_again(servers, of="store") if cache is None else cache
        clients = Clients(
            on, namespace, {"durability": durability}, of="store", awaited="async_add_message, aget_messages"
        )
        settings = on if isinstance(on, Settings) else on.settings
        super().__init__(namespace=namespace, durability=durability, servers=servers_of(settings))  # type: ignore[call-arg]
        self._clients, self._bytes_max = clients, settings.value_bytes_max

    @classmethod
    def class_name(cls) -> str:
        """Return what the class is called in what LlamaIndex writes of its components."""
        return "StateCacheChatStore"

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

    def __getstate__(self) -> dict[Any, Any]:
        # LlamaIndex leaves out what it cannot pickle: the store would come back on the servers of the environment.
        return BaseModel.__getstate__(self)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        BaseModel.__setstate__(self, state)

    def group_of(self, key: str) -> str:
        """Return the key of the group that a chat's states are of, as `rollback`, `branch` and `erase` take it."""
        return f"{self.namespace}/{place_of(key).head}"

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Have a chat hold these messages alone, in one commit."""
        self._clients.run(self._replaced(key, messages))

    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Do what `set_messages` does."""
        await self._clients.arun(self._replaced(key, messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return the messages of a chat, as they were at one moment during the call; none where there is no chat."""
        return self._clients.run(messages_of(place_of(key)))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Do what `get_messages` does."""
        return await self._clients.arun(messages_of(place_of(key)))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Add a message, or put it before the one at `idx`, in one commit."""
        self._clients.run(self._added(key, message, idx))

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Do what `add_message` does."""
        await self._clients.arun(self._added(key, message, idx))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a chat, and return its messages, or None where there is none.

        What they once were stays in the history: `erase` of the group ends that.
        """
        return self._clients.run(deleted(place_of(key)))

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Do what `delete_messages` does."""
        return await self._clients.arun(deleted(place_of(key)))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Take the message at `idx` out, which may count from the end, and return it; None where there is none."""
        return self._clients.run(taken(place_of(key), idx, self._bytes_max))

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Do what `delete_message` does."""
        return await self._clients.arun(taken(place_of(key), idx, self._bytes_max))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Take the last message out and return it; None where there is none."""
        return self.delete_message(key, -1)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Do what `delete_last_message` does."""
        return await self.adelete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the keys of all chats, those that were emptied too."""
        return self._clients.run(_keys())

    async def aget_keys(self) -> list[str]:
        """Do what `get_keys` does."""
        return await self._clients.arun(_keys())

    def _replaced(self, key: str, messages: list[ChatMessage]) -> Plan[None]:
        data = [message_data(message, at) for at, message in enumerate(messages)]
        return replaced(place_of(key), data, self._bytes_max)

    def _added(self, key: str, message: ChatMessage, idx: int | None) -> Plan[None]:
        data = message_data(message, 0)
        if idx is None:
            return added(place_of(key), data, self._bytes_max)
        return inserted(place_of(key), data, idx, self._bytes_max)


def _keys() -> Plan[list[str]]:
    states = yield from call("list", "", where={"of": OF})
    return [key_of(state) for state in states]
