"""The session service: the methods that ADK calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse

from statecache import Settings
from statecache.adapters.adk.documents import is_same, place_of
from statecache.adapters.adk.sessions import Sessions
from statecache.adapters.clients import settings_of
from statecache.adapters.event_loops import Client, LoopClients, OnEventLoops, alone
from statecache.adapters.segments import refuse_parted

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from statecache import AsyncStateCache, Durability

NAMESPACE = "adk"


class StateCacheSessionService(OnEventLoops, BaseSessionService):
    """A session service of ADK on statecache: sessions are hot in Redis, and durable in Postgres.

    `cache` is an `AsyncStateCache`, which any number of services may share, or `Settings`; without it settings come
    from STATECACHE_* variables. On settings the service makes a client of its own for each event loop, and closes it:
    use it as a context manager, or call `close`. A client that is given stays open. `namespace` is that of all its
    states. `durability` is when a write counts as written, the setting without it.

    What statecache raises is raised, beside ADK's own errors: `OutcomeUnknown` where nobody knows whether a write was
    applied, `CodecError` for an event that is no JSON, `LimitExceeded` for an event, or a state, above 8 MiB.
    """

    def __init__(
        self,
        cache: AsyncStateCache | Settings | None = None,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
    ) -> None:
        refuse_parted(namespace, "a session")
        self._namespace = namespace
        on, policy = Settings() if cache is None else cache, {"durability": durability}
        self._clients = LoopClients(on, namespace, policy, of="service", run_sync="asyncio.run around each call")

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
        """Return a service with clients of its own; `url` is that of Redis.

        What is not given comes from STATECACHE_* variables; every other setting may be given by its name.
        """
        return cls(settings_of(url, postgres_url, settings), namespace=namespace, durability=durability)

    @classmethod
    def from_settings(cls, settings: Settings | None = None, **options: Any) -> Self:
        """Return a service with clients of its own; `options` are those of the constructor."""
        return cls(settings, **options)

    def group_of(self, app_name: str, user_id: str, session_id: str) -> str:
        """Return the key of a session's group, as `rollback`, `checkpoint` and `erase` take it."""
        return f"{self._namespace}/{place_of(app_name, user_id, session_id).head}"

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session, with an id that is generated where none is given, and return it.

        Of `state`, what begins with `app:` and `user:` becomes a part of the state that all sessions of the app, or of
        the user, share; `temp:` is not kept. Raises AlreadyExistsError where there is a session of that id.
        """
        place = place_of(app_name, user_id, (session_id or "").strip() or platform_uuid.new_uuid())
        here = self._clients.on(place)
        return await alone(here, lambda: _sessions(here).create(place, state or {}))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events and the merged state, or None where there is none.

        Of its events, `config` asks for the last `num_recent_events`, and of these for those since `after_timestamp`.
        """
        here, place = self._clients.here(), place_of(app_name, user_id, session_id.strip())
        limit, since = (None, None) if config is None else (config.num_recent_events, config.after_timestamp)
        return await _sessions(here).get(place, limit, since)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, with merged states and without events.

        Those that were updated last come last.
        """
        here, place = self._clients.here(), place_of(app_name, user_id or "", "")
        return ListSessionsResponse(sessions=await _sessions(here).sessions(place.app_name, user_id))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session and its events, where there is one. What it held stays in the history: `erase` ends that."""
        place = place_of(app_name, user_id, session_id.strip())
        here = self._clients.on(place)
        await alone(here, lambda: _sessions(here).delete(place))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return what all sessions of a user share, under keys without `user:`; empty where there is nothing."""
        return await _sessions(self._clients.here()).user_state(place_of(app_name, user_id, ""))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session, and to the session object, and return it.

        The event and what it changes in the state are one: all of it counts, or none. A `partial` event is not kept,
        and `temp:` keys are in the session object alone. An event that the session has already is not
        appended again. Raises StaleSessionError, a ValueError, where somebody has gone on with the session since the
        object was loaded, SessionNotFoundError where it is gone, and LimitExceeded for an event above 8 MiB.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        place = place_of(session.app_name, session.user_id, session.id)
        here = self._clients.on(place)
        appended = await alone(here, lambda: _sessions(here).append(place, session, event))
        # Who was cancelled does not come here: an object that lacks an event which was appended is not current.
        session._storage_update_marker = appended.revision
        if appended.there and any(is_same(one, event) for one in session.events):
            return event
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)


def _sessions(here: Client) -> Sessions:
    return Sessions(here.view, bytes_max=here.bytes_max)
