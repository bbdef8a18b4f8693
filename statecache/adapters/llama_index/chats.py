"""What a chat's states hold, and what is written to add a message, to take some out, and to begin anew.

    head {of: "llama-index chat", log: 9c1f04e2, items: 3, pages: 2, revision: b}
    page 1 {revision: a, after: "", items: […]}      page 2 {revision: b, after: a, items: […]}

A change reads the pages from the one that it concerns on, and writes these alone, with the head, in one commit over
what was read. So a message more writes the last page, and one that is taken out of the middle those behind it. Messages
that are set as a whole have pages with another number in their names: what is left of the ones before is never taken
for them. A chat that was emptied is still there, as LlamaIndex has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from llama_index.core.llms import ChatMessage
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from statecache import (
    CodecError,
    Create,
    Delete,
    DurabilityNotMet,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Set,
    State,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from statecache.adapters.applied import is_applied
from statecache.adapters.filling import FRAME_BYTES, WRITTEN_PAGES_MAX, filling
from statecache.adapters.items import Kept, given, kept, same
from statecache.adapters.pages import (
    ATTEMPTS_MAX,
    Found,
    Page,
    converted,
    head_value,
    log_of,
    new_page,
    read_pages,
    with_pages,
)
from statecache.adapters.plans import Plan, call
from statecache.adapters.remains import delete_remains
from statecache.adapters.segments import refuse_nul, segment, spelled_out

if TYPE_CHECKING:
    from statecache import Durability, ReadMode

OF: Literal["llama-index chat"] = "llama-index chat"
KEY_BYTES_MAX = 120
"""How many UTF-8 bytes of a key stand in a name."""

Writes = list[Set | Create | Delete]
Limit = int | None | Callable[[int], int]
"""How many of the last messages a change concerns; a function is told how many there are."""


class Head(msgspec.Struct, frozen=True):
    """What the head of a chat holds; `log` is a part of its pages' names."""

    of: Literal["llama-index chat"]
    key: Any
    log: str
    items: int
    pages: int
    revision: str
    logs: dict[str, str] = {}
    grown_as: str = ""


class Place(NamedTuple):
    """A chat, and the names of its states."""

    key: str
    head: str

    @property
    def pages(self) -> str:
        """How the names of all pages begin."""
        return f"{self.head}/pages/"

    def page(self, known: Head, number: int) -> str:
        """Return the name of a page."""
        return f"{self.pages}{log_of(known, number)}/{number:06}"

    def read(self, state: State[Any]) -> Head:
        """Return the head that a state holds; raise CodecError where it is none."""
        head: Head = converted(state, Head, "head of a chat of LlamaIndex")
        return head

    def nothing(self) -> Found:
        """Return what is found where there is no chat."""
        return Found(None, self.begun(), ())

    def begun(self) -> Head:
        """Return the head of a chat that begins anew."""
        return Head(OF, kept(self.key, 0).data, token_hex(4), 0, 0, "")


def place_of(key: str) -> Place:
    """Return the place of a chat."""
    refuse_nul("key", key)
    return Place(key, segment(key, KEY_BYTES_MAX))


def key_of(state: State[Any]) -> str:
    """Return the key of a chat by its head; one that was copied with its group is called as that is."""
    head: Head = converted(state, Head, "head of a chat of LlamaIndex")
    name, key = state.key.partition("/")[2], str(given(head.key))
    return key if place_of(key).head == name else spelled_out(name)


def message_data(message: ChatMessage, at: int) -> Kept:
    """Return a message as it is kept; raise CodecError, with its place, for one that is no JSON."""
    try:
        data = message.model_dump(mode="json")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise CodecError(path=f"$[{at}]", reason=f"a message cannot be written as JSON: {error}") from error
    return kept(data, at)


def message_of(data: Any, place: Place) -> ChatMessage:
    """Return the message that was kept."""
    try:
        return ChatMessage.model_validate(data)
    except ValidationError as error:
        raise CodecError(key=place.head, verb="decoded", reason=f"it holds what is no message: {error}") from error


def messages_of(place: Place) -> Plan[list[ChatMessage]]:
    """Return all messages, as they were at one moment."""
    found = yield from read_pages(place, None, head="primary", pages="local")
    return [message_of(data, place) for data in found.items()]


def added(place: Place, message: Kept, bytes_max: int) -> Plan[None]:
    """Add a message behind the others."""

    def decide(found: Found) -> Writes:
        last = found.documents()[-1:]
        filled = filling(last[0].items if last else None, [message], bytes_max - FRAME_BYTES)
        return _written(place, found, filled, len(last))

    yield from _changed(place, 0, decide)


def inserted(place: Place, message: Kept, at: int, bytes_max: int) -> Plan[None]:
    """Put a message before the one at that place, as a list does it; behind all where there are fewer."""

    def decide(found: Found) -> Writes:
        data = [data for page in found.documents() for data in page.items]
        where = _index(at, found, len(data))
        sized = [_sized(one) for one in data]
        sized.insert(max(where, 0), message)
        return _written(place, found, filling(None, sized, bytes_max - FRAME_BYTES), len(found.pages))

    yield from _changed(place, _from(at, more=1), decide)


def taken(place: Place, at: int, bytes_max: int) -> Plan[ChatMessage | None]:
    """Take the message at that place out, as a list does it, and return it; None where there is none.

    One that cannot be read, as that of another release, is left there: it is looked at before anything is written.
    """
    gone: list[ChatMessage] = []

    def decide(found: Found) -> Writes:
        gone.clear()
        data = [data for page in found.documents() for data in page.items]
        where = _index(at, found, len(data))
        if found.head is None or not 0 <= where < len(data):
            return []
        gone.append(message_of(given(data.pop(where)), place))
        filled = filling(None, [_sized(one) for one in data], bytes_max - FRAME_BYTES)
        return _written(place, found, filled, len(found.pages))

    yield from _changed(place, _from(at), decide)
    return gone[0] if gone else None


def replaced(place: Place, messages: Sequence[Kept], bytes_max: int) -> Plan[None]:
    """Have a chat hold these messages alone."""
    old = _Old(place)

    def decide(found: Found) -> Writes:
        anew = Found(found.head, place.begun(), ())
        writes = _written(place, anew, filling(None, messages, bytes_max - FRAME_BYTES), 0)
        return [*writes, *old.deletes(found, WRITTEN_PAGES_MAX + 1 - len(writes))]

    yield from old.changed(0, decide)


def deleted(place: Place) -> Plan[list[ChatMessage] | None]:
    """Delete a chat, and return the messages that it had; None where there is none.

    Nothing is deleted where one of these cannot be read. What a process has left that was killed while it deleted one
    is looked for where there is none.
    """
    old, messages = _Old(place), list[ChatMessage]()

    def decide(found: Found) -> Writes:
        messages[:] = [message_of(data, place) for data in found.items()]
        if found.head is None:
            return []
        return [Delete(place.head, expected=found.head), *old.deletes(found, WRITTEN_PAGES_MAX)]

    found = yield from old.changed(None, decide)
    if found.head is None:
        yield from delete_remains(place.head, place.pages, "")
        return None
    return messages


class _Old:
    """The pages of a chat that end with it; those that its last commit has no room for are deleted after it.

    No head names them from then on, and no later pages have their names.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._gone, self._left = set[str](), list[str]()

    def deletes(self, found: Found, room: int) -> list[Delete]:
        """Return what deletes as many as there is room for."""
        count = 0 if found.head is None else found.known.pages
        pages = [self._place.page(found.known, number) for number in range(1, count + 1)]
        pages = [page for page in pages if page not in self._gone]
        self._left = pages[room:]
        return [*map(Delete, pages[:room])]

    def changed(self, limit: Limit, decide: Callable[[Found], Writes]) -> Plan[Found]:
        """Commit what is decided on what was found, and delete the others; return what it was decided on."""
        try:
            found = yield from _changed(self._place, limit, decide, self._gone)
        except DurabilityNotMet:  # which is applied
            yield from self._rest("memory")
            raise
        yield from self._rest(None)
        return found

    def _rest(self, durability: Durability | None) -> Plan[None]:
        if self._left:
            yield from call("delete_many", self._left, durability=durability)


def _changed(
    place: Place, limit: Limit, decide: Callable[[Found], Writes], gone: set[str] | None = None
) -> Plan[Found]:
    """Commit what is decided on what was found, again while somebody is first; return what it was decided on."""
    asked = False
    failed: StateCacheError = UsageError(f"nothing came of {ATTEMPTS_MAX} attempts")
    for attempt in range(ATTEMPTS_MAX):
        mode: ReadMode = "primary" if attempt else "local"
        found = yield from read_pages(place, limit, head=mode, pages=mode)
        writes = decide(found)
        if not writes:
            if attempt:
                return found
            continue
        try:
            yield from call("commit", writes)
        except (VersionConflict, NotFound) as error:
            failed = error
            if gone is not None and isinstance(error, NotFound):
                gone.add(error.key.partition("/")[2])
        except OutcomeUnknown as error:
            if (yield from is_applied(error, place.head)):
                return found
            if asked:
                raise
            asked, failed = True, error
        else:
            return found
    raise failed


def _written(place: Place, found: Found, filled: list[list[Any]], read: int) -> Writes:
    """Return what has the last pages that were read hold what `filled` says instead; the first ones may be the same."""
    known: Head = found.known
    revision, old = token_hex(8), found.documents()[len(found.pages) - read :]
    states = found.pages[len(found.pages) - read :]
    first, unchanged = known.pages - read + 1, 0
    for before, now in zip(old, filled, strict=False):
        if len(before.items) != len(now) or not same(before.items, now):
            break
        unchanged += 1
    after = old[unchanged].after if unchanged < len(old) else known.revision
    if unchanged < len(old) and unchanged:
        after = old[unchanged - 1].revision
    writes: Writes = []
    kept_as = with_pages(found, known.pages - read + len(filled))
    for at in range(unchanged, len(filled)):
        page = Page(revision, after, filled[at])
        if at < len(states):
            writes.append(Set(place.page(known, first + at), msgspec.structs.asdict(page), expected=states[at]))
        else:
            writes.append(new_page(place, found, kept_as, first + at, page))
        after = revision
    surplus = [(at, state) for at, state in enumerate(states) if at >= len(filled) and state is not None]
    writes.extend(Delete(place.page(known, first + at), expected=state) for at, state in surplus)
    if len(writes) > WRITTEN_PAGES_MAX:
        raise LimitExceeded("the number of pages that are written at once", actual=len(writes), limit=WRITTEN_PAGES_MAX)
    items = known.items - sum(len(page.items) for page in old) + sum(map(len, filled))
    head = msgspec.structs.replace(kept_as, key=kept(place.key, 0).data, items=max(items, 0), revision=after)
    return [Set(place.head, head_value(head), expected=found.head), *writes]


def _from(at: int, more: int = 0) -> Limit:
    """Return how many of the last messages there are from a place in the list on."""
    return lambda items: max(items - at, 0) if at >= 0 else min(-at + more, items)


def _index(at: int, found: Found, count: int) -> int:
    """Return where a place of the whole list is among the messages that were read, the last ones; they may be all."""
    items: int = found.known.items
    return (at if at >= 0 else items + at) - (items - count)


def _sized(data: Any) -> Kept:
    return Kept(data, len(msgspec.json.encode(data)))
