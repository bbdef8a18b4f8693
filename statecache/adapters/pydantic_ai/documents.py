"""What a conversation's states hold, and what is to be written to add to it: decided, not done.

    record {of: "pydantic-ai", head_id: c, log: 9c1f04e2, pages: 2, entries: 3, …}
    page 1 {entries: {a: {parent: null, …}, b: {parent: a, …}}}      page 2 {entries: {c: {parent: b, …}}}

An entry stands behind the one that it names, in the same page or an earlier one. What a history left behind when it
was rewritten stays in the log, and the record names where each of these branches ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from statecache import CodecError, UsageError
from statecache.adapters.filling import FRAME_BYTES, filling
from statecache.adapters.items import Kept, given, kept
from statecache.adapters.pages import converted, head_value, log_of
from statecache.adapters.segments import refuse_nul, segment

if TYPE_CHECKING:
    from statecache import State

OF: Literal["pydantic-ai"] = "pydantic-ai"
CONVERSATION_BYTES_MAX = 120
"""How many UTF-8 bytes of a conversation's id stand in a name."""

Line = dict[str, Any]
"""An entry as a page holds it: the `parent`, the `kind`, and the `message`."""


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """Where the entries of a conversation are, and how many; `log` is that of the first page."""

    log: str
    pages: int = 0
    entries: int = 0
    logs: dict[str, str] = {}
    grown_as: str = ""


class Head(Extent, frozen=True, kw_only=True):
    """What the record of a conversation holds."""

    of: Literal["pydantic-ai"]
    format_version: Literal[1]
    conversation_id: Any
    head_id: str | None
    revision: str
    updated_at: str
    scope: str | None
    forked_from: Any
    forked_at: str | None
    branches: list[str]
    usage: Any
    deferred_tool_requests: Any = None


class Page(msgspec.Struct, frozen=True):
    """What a page holds: entries by their spelled ids, in order."""

    entries: dict[str, Line]


class EntryId(str):
    """The id of an entry, which knows the group of a conversation that it was read from."""

    group: str

    def __new__(cls, text: str, group: str = "") -> EntryId:
        made = super().__new__(cls, text)
        made.group = group
        return made


class Place(NamedTuple):
    """A conversation's group, and the names of its states."""

    head: str

    @property
    def pages(self) -> str:
        """How the names of all pages begin."""
        return f"{self.head}/log/"

    def page(self, known: Extent, number: int) -> str:
        """Return the name of a page."""
        return f"{self.pages}{log_of(known, number)}/{number:06}"


def place_of(conversation_id: str) -> Place:
    """Return the place of a conversation."""
    refuse_nul("conversation_id", conversation_id)
    return Place(segment(conversation_id, CONVERSATION_BYTES_MAX))


def spelled(entry_id: str) -> str:
    """Return an entry's id as the name of a member that has no dot, for Postgres takes that for a path."""
    return entry_id.replace("%", "%25").replace(".", "%2E")


def read(state: State[Any], kind: type[Any]) -> Any:
    """Return what a state holds as a Head or a Page; raise CodecError where it is none of a conversation."""
    return converted(state, kind, f"{'record' if kind is Head else 'page'} of a conversation of Pydantic AI")


def line_of(entry: ConversationEntry, at: int) -> tuple[str, Kept]:
    """Return an entry as a page holds it, under its id; raise CodecError for a message that is no JSON."""
    try:
        (data,) = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise CodecError(path=f"$[{at}]", reason=f"a message cannot be written as JSON: {error}") from error
    message = kept(data, at, nul=False)
    parent = None if entry.parent_id is None else str(entry.parent_id)
    line = {"parent": parent, "kind": entry.kind, "message": message.data}
    return str(entry.id), Kept(line, message.size + 2 * len(entry.id) + 60)


def entry_of(entry_id: str, line: Line, group: str) -> ConversationEntry:
    """Return the entry that a page holds."""
    try:
        (message,) = ModelMessagesTypeAdapter.validate_python([given(line["message"])])
    except (ValidationError, KeyError) as error:
        raise CodecError(
            key=group, path=f"$.entries.{entry_id}", verb="decoded", reason=f"it is no message: {error}"
        ) from error
    parent = None if line["parent"] is None else EntryId(line["parent"], group)
    return ConversationEntry(id=EntryId(entry_id, group), parent_id=parent, message=message, kind=line["kind"])


def head_of(record: ConversationRecord, extent: Extent) -> dict[str, Any]:
    """Return what is kept of a record; raise CodecError or UsageError for what cannot be kept."""
    if record.format_version != 1:
        raise UsageError(f"a record of the format {record.format_version} is newer than what is known here, which is 1")
    refuse_scope(record.scope)
    requests = record.deferred_tool_requests
    carried = Conversation(usage=record.usage, deferred_tool_requests=requests, conversation_id="")
    try:
        data = ConversationTypeAdapter.dump_python(carried, mode="json")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise CodecError(path="$", reason=f"a record cannot be written as JSON: {error}") from error
    head = Head(
        of=OF, format_version=1, conversation_id=kept(record.conversation_id, 0).data,
        head_id=None if record.head_id is None else str(record.head_id), revision=record.revision,
        updated_at=record.updated_at.isoformat(), scope=record.scope,
        forked_from=None if record.forked_from is None else kept(record.forked_from, 0, nul=False).data,
        forked_at=None if record.forked_at is None else str(record.forked_at),
        branches=[*map(str, record.branches)], log=extent.log, pages=extent.pages, entries=extent.entries,
        logs=extent.logs, grown_as=extent.grown_as, usage=kept(data["usage"], 0, nul=False).data,
        deferred_tool_requests=kept(data["deferred_tool_requests"], 0, nul=False).data,
    )  # fmt: skip
    return head_value(head)


def record_of(state: State[Any], head: Head, conversation_id: str, group: str) -> ConversationRecord:
    """Return the record that a state holds."""
    usage, requests = given(head.usage), given(head.deferred_tool_requests)
    carried = {"usage": usage, "deferred_tool_requests": requests, "conversation_id": ""}
    try:
        conversation = ConversationTypeAdapter.validate_python(carried)
        updated_at = msgspec.convert(head.updated_at, datetime)
    except (ValidationError, msgspec.ValidationError) as error:
        raise CodecError(key=state.key, verb="decoded", reason=f"it is no record of a conversation: {error}") from error
    return ConversationRecord(
        conversation_id=conversation_id,
        head_id=None if head.head_id is None else EntryId(head.head_id, group),
        usage=conversation.usage,
        deferred_tool_requests=conversation.deferred_tool_requests,
        scope=head.scope,
        forked_from=given(head.forked_from),
        forked_at=None if head.forked_at is None else EntryId(head.forked_at, group),
        branches=[EntryId(tip, group) for tip in head.branches],
        revision=head.revision,
        updated_at=updated_at,
    )


def refuse_scope(scope: str | None) -> None:
    """Raise UsageError for a scope that Postgres cannot compare."""
    if scope is not None:
        refuse_nul("scope", scope)
        if scope != scope.encode("utf-8", "replace").decode():
            raise UsageError(f"scope={scope!a} is no text that has a UTF-8 form")


def pages_of(last: Mapping[str, Line] | None, lines: Sequence[tuple[str, Kept]], bytes_max: int) -> list[Page]:
    """Return what pages hold once entries are added: the last page first, where there is one, and then new ones."""
    pairs = [Kept([spelled(entry_id), line.data], line.size) for entry_id, line in lines]
    filled = filling(None if last is None else [*map(list, last.items())], pairs, bytes_max - FRAME_BYTES)
    return [Page(dict(pairs)) for pairs in filled]
