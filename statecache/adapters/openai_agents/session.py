"""The session: the methods that the SDK calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit

from statecache import Settings
from statecache.adapters.clients import settings_of
from statecache.adapters.event_loops import LoopClients, OnEventLoops, alone
from statecache.adapters.items import kept
from statecache.adapters.openai_agents.conversation import Conversation
from statecache.adapters.openai_agents.pages import Last, Place
from statecache.adapters.segments import refuse_parted

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

    from statecache import AsyncStateCache, Durability
    from statecache.adapters.event_loops import Client

NAMESPACE = "openai-agents"


class StateCacheSession(OnEventLoops):
    """A session of the OpenAI Agents SDK on statecache: a conversation is hot in Redis, and durable in Postgres.

    `cache` is an `AsyncStateCache`, which any number of sessions may share, or `Settings`; without it settings come
    from STATECACHE_* variables. On settings the session makes a client of its own for each event loop, and closes it:
    use it as a context manager, or call `close`. A client that is given stays open. `namespace` is that of all its
    states. `durability` is when what was added counts as written, the setting without it. `session_settings` is as the
    SDK has it: its `limit` counts where `get_items` is given none.

    What statecache raises is raised: `VersionConflict` where a commit could not be had against many others,
    `OutcomeUnknown` where nobody knows whether it was applied.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        cache: AsyncStateCache | Settings | None = None,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        refuse_parted(namespace, "a session")
        self.session_id = session_id
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._namespace, self._place, self._last = namespace, Place(session_id), Last()
        on, policy = Settings() if cache is None else cache, {"durability": durability}
        self._clients = LoopClients(on, namespace, policy, of="session", run_sync="Runner.run_sync")

    @classmethod
    def from_url(
        cls,
        session_id: str,
        *,
        url: str | None = None,
        postgres_url: str | None = None,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """Return a session with clients of its own; `url` is that of Redis.

        What is not given comes from STATECACHE_* variables; every other setting may be given by its name.
        """
        told = settings_of(url, postgres_url, settings)
        return cls(session_id, told, namespace=namespace, durability=durability, session_settings=session_settings)

    @classmethod
    def from_settings(cls, session_id: str, settings: Settings | None = None, **options: Any) -> Self:
        """Return a session with clients of its own; `options` are those of the constructor."""
        return cls(session_id, settings, **options)

    @property
    def group(self) -> str:
        """The key of the group that the session's states are of, as `rollback`, `branch` and `erase` take it."""
        return f"{self._namespace}/{self._place.head}"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return all items, or the latest `limit` ones, in the order in which they were added.

        Without `limit` that of the session's settings counts; 0 is none, and less than 0 all, as in the SDK's
        SQLiteSession. What this call returns was there at one moment during it.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        conversation = self._conversation(self._clients.here())
        if limit == 0:
            return []
        return await conversation.items(None if limit is None or limit < 0 else limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items behind those that are there: all of them or none, in one commit.

        Raises CodecError for what is no JSON, and LimitExceeded for an item above 8 MiB, or items above 16 MiB.
        """
        here = self._clients.here()
        if items:
            data = [kept(item, at) for at, item in enumerate(items)]
            await alone(here, lambda: self._conversation(here).add(data))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the latest item out and return it; None where there is none."""
        here = self._clients.here()
        return await alone(here, self._conversation(here).pop)

    async def clear_session(self) -> None:
        """Take all items out. What they once held stays in the history: `erase` of the group ends that."""
        here = self._clients.here()
        await alone(here, self._conversation(here).clear)

    def _conversation(self, here: Client) -> Conversation:
        return Conversation(here.view, self._place, bytes_max=here.bytes_max, last=self._last)
