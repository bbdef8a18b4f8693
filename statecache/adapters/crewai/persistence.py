"""The persistence: the methods that flows call, in whatever thread, inside of event loops and outside.

CrewAI calls each of them without await, and waits. A save is written over what is there, as its own persistence does:
of two processes that run one flow at once the one that saves last is what `load_state` gives, and both are in the
history.
"""

from __future__ import annotations

import json
import re
from datetime import date
from typing import TYPE_CHECKING, Any, Self

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import BaseModel, Field, PrivateAttr

from statecache import CodecError, Set, Settings, StateCache, UsageError
from statecache.adapters.clients import Clients, OnClients, servers_of, settings_again, settings_of
from statecache.adapters.items import given, kept
from statecache.adapters.plans import Plan, call, proven
from statecache.adapters.segments import refuse_nul, refuse_parted, segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache import Change, Durability, State

NAMESPACE = "crewai"
FLOW_BYTES_MAX = 200
"""How many UTF-8 bytes of a flow's id stand in a name."""
_OF = "persistence"
_REASON_BYTES_MAX = 1024
_SAID = re.compile(r"(expired|erased)($|: )|(rollback|undo|redo) to |(branch|merge) of ")
"""How that begins which the library itself says of a change, and refuses as a reason that a user gives."""
_BROUGHT = re.compile(r"(branch|merge) of [^@]+@\d")
"""How that begins which it says of a change that brings something from another key."""


class StateCacheFlowPersistence(OnClients, FlowPersistence):  # type: ignore[misc,unused-ignore]
    """Persistence for flows of CrewAI on statecache: hot in Redis, durable in Postgres.

    `cache` is a `StateCache`, which any number may share, or `Settings`; without it settings come from STATECACHE_*
    variables. On settings it makes a client of its own when one is first needed, and closes it: use it as a context
    manager, or call `close`. A client that is given stays open. `namespace` is that of all its states. `durability` is
    when a save counts as saved, the setting without it. Copies share the client. One that CrewAI makes again from its
    fields stands on settings of the environment: `servers` says whether these name the servers that it stood on.

    What statecache raises is raised: `OutcomeUnknown` where nobody knows whether a save was applied, `CodecError` for a
    state that is no JSON, `LimitExceeded` for one above 8 MiB. `@persist` makes a RuntimeError of each of them.
    """

    persistence_type: str = Field(default="StateCacheFlowPersistence")
    namespace: str = NAMESPACE
    durability: str | None = None
    servers: str | None = None
    _clients: Clients = PrivateAttr()

    def __init__(
        self,
        cache: StateCache | Settings | None = None,
        /,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        **fields: Any,
    ) -> None:
        refuse_parted(namespace, "a flow")
        if cache is not None and not isinstance(cache, (StateCache, Settings)):
            what = f"persistence for flows stands on a StateCache or on Settings, not on a {type(cache).__name__}"
            raise UsageError(what, hint="CrewAI calls it without await.")
        on = settings_again(fields.pop("servers", None), of=_OF) if cache is None else cache
        fields["servers"] = servers_of(on if isinstance(on, Settings) else on.settings)
        super().__init__(namespace=namespace, durability=durability, **fields)
        self._clients = Clients(on, namespace, {"durability": durability}, of=_OF, awaited="none")

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
        """Return persistence with a client of its own; `url` is that of Redis.

        What is not given comes from STATECACHE_* variables; every other setting may be given by its name.
        """
        return cls(settings_of(url, postgres_url, settings), namespace=namespace, durability=durability)

    def group_of(self, flow_uuid: str) -> str:
        """Return the key of the group that a flow is, as `log`, `erase` and `rollback` take it."""
        return f"{self.namespace}/{flow_name(flow_uuid)}"

    def init_db(self) -> None:
        """Look whether Redis and Postgres can be used; raise what hinders that. `statecache migrate` sets them up."""
        self.setup()

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save what a flow has come to, under the name of the method that finished as the reason."""
        name = flow_name(flow_uuid)
        self._clients.run(call("set", name, _kept(_plain(state_data), name), reason=reason_of(method_name)))

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return what was saved last of a flow, or None where nothing was, or was deleted.

        What a branch or a merge brought from another flow has the id of this one: CrewAI saves under the id that it is
        given here.
        """
        return self._clients.run(_loaded(str(flow_uuid), flow_name(flow_uuid)))

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save what a flow has come to, and what it waits for, in one commit; what it waited for before is replaced."""
        name, state = flow_name(flow_uuid), _plain(state_data)
        pending = {"context": _kept(context.to_dict(), name), "state": _kept(state, name)}
        writes = [Set(name, _kept(state, name)), Set(f"{name}/pending", pending)]
        self._clients.run(call("commit", writes, reason=reason_of(context.method_name)))

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return what a paused flow has come to, and what it waits for; None for one that waits for nothing."""
        return self._clients.run(_loaded_pending(str(flow_uuid), flow_name(flow_uuid)))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Forget what a flow waited for; where it waited for nothing, do nothing."""
        self._clients.run(_cleared(f"{flow_name(flow_uuid)}/pending"))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self


def _loaded(flow_uuid: str, name: str) -> Plan[dict[str, Any] | None]:
    state: State[Any] | None = yield from call("get", name, read="primary")
    value = None if state is None else given(state.value)
    if state is None or not isinstance(value, dict):
        return None
    if _is_of(value.get("id"), name) or not (yield from _came_from_another(name, state)):
        return value
    return value | {"id": flow_uuid}


def _loaded_pending(flow_uuid: str, name: str) -> Plan[tuple[dict[str, Any], PendingFeedbackContext] | None]:
    state: State[Any] | None = yield from call("get", f"{name}/pending", read="primary")
    if state is None:
        return None
    try:
        value, context = given(state.value["state"]), PendingFeedbackContext.from_dict(given(state.value["context"]))
    except (TypeError, KeyError) as error:
        reason = f"it holds no pending feedback: {error!r}"
        raise CodecError(key=state.key, verb="decoded", reason=reason) from error
    is_own = _is_of(value.get("id"), name), _is_of(context.flow_id, name)
    if all(is_own) or not (yield from _came_from_another(f"{name}/pending", state)):
        return value, context
    context.flow_id = flow_uuid
    return value if is_own[0] else value | {"id": flow_uuid}, context


def _is_of(flow_uuid: object, name: str) -> bool:
    """Return whether an id in what was saved is that of the flow itself, or is none."""
    return flow_uuid is None or segment(str(flow_uuid), FLOW_BYTES_MAX) == name


def _came_from_another(name: str, state: State[Any]) -> Plan[bool]:
    """Return whether a branch or a merge ever brought something from another flow to what a state holds.

    Then an id that is not the flow's own came from there, whatever has been rolled back or changed since.
    """
    changes: Sequence[Change[Any]] = yield from call("history", name, until=state.version)
    return any(_BROUGHT.match(one.reason) for one in changes)


def _cleared(name: str) -> Plan[None]:
    """Delete what a flow waited for, or wait until its delete is as durable as a write has to be."""
    if (yield from call("delete", name, reason="resumed")) is None:
        yield from proven(name)


def flow_name(flow_uuid: object) -> str:
    """Return the name of a flow's state; raise UsageError for an id that is None, or that Postgres cannot hold.

    Any other id counts as its text, as in CrewAI's own persistence: a flow of the id 42 is that of the id "42".
    """
    if flow_uuid is None:
        raise UsageError("a flow's id is None", hint="Give the flow's state an id, or leave it to CrewAI.")
    refuse_nul("a flow's id", str(flow_uuid))
    return segment(str(flow_uuid), FLOW_BYTES_MAX)


def reason_of(method_name: object) -> str:
    """Return the reason of what is saved when a method has finished: its name.

    Before one that reads like what the library itself says of a change, as `expired`, stands `method`; one that is too
    long for a reason is cut off, and ends in `…`. As in CrewAI's own persistence any name will do: what is no text
    counts as its text, and what Postgres cannot hold becomes `?`.
    """
    name = str(method_name).replace("\0", "?")
    data = (f"method {name}" if _SAID.match(name) else name).encode(errors="replace")
    if len(data) <= _REASON_BYTES_MAX:
        return data.decode()
    return data[: _REASON_BYTES_MAX - len("…".encode())].decode(errors="ignore") + "…"


def _plain(state_data: dict[str, Any] | BaseModel) -> dict[str, Any]:
    """Return a flow's state as a dict, as CrewAI's own persistence takes it."""
    if isinstance(state_data, BaseModel):
        return _of_model(state_data)
    if isinstance(state_data, dict):
        return state_data
    raise ValueError(f"state_data is a BaseModel or a dict, not a {type(state_data).__name__}")


def _of_model(model: BaseModel) -> dict[str, Any]:
    try:
        return model.model_dump(mode="json")
    except ValueError:  # something in it that pydantic has no JSON for
        return model.model_dump(mode="python")


def _kept(value: dict[str, Any], name: str) -> Any:
    """Return a value as it is kept; what JSON has no form for becomes a list or a text, as CrewAI has it."""
    try:
        return kept(json.loads(json.dumps(value, default=_as_json)), 0).data
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(key=name, reason=f"a flow's state is what json can write: {error}") from error


def _as_json(value: object) -> Any:
    if isinstance(value, BaseModel):
        return _of_model(value)
    if isinstance(value, (set, tuple)):
        return list(value)
    return value.isoformat() if isinstance(value, date) else str(value)
