"""What a session's states hold, and what is to be written to add, to pop and to clear: decided, not done.

A head counts the pages. Each page names the revision of the page before it as that was when the page was begun, and
the head that of the last page. A revision is drawn for each commit that writes pages, so one of them stands for one
content of a page, and the chain of them for one content of the session. States that were read at several moments hold
together if their revisions do, and only then:

    head {pages: 2, revision: b}      page 2 {revision: b, after: a}      page 1 {revision: a, after: ""}

Pages before the last one are not written. An emptied page is deleted, and the one before is the last one again. The
group's own verbs keep all this, for they take the states back together: to roll back, to undo, to branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from statecache import CodecError, Delete, LimitExceeded, Set, State
from statecache.adapters.openai_agents.items import Kept, given
from statecache.adapters.segments import refuse_nul, segment

PAGE_ITEMS_MAX = 64
PAGE_BYTES_MAX = 16 * 1024
ADDED_PAGES = 60
"""A large addition has larger pages, so that it has less than four times as many: a commit takes 256 states."""
WRITTEN_PAGES_MAX = 255
"""How many pages are written by one commit, beside the head."""
VALUE_BYTES_MAX = 8 * 1024 * 1024
_FRAME_BYTES = 128
"""What a page has beside its items, and some more."""
CLEARED_PAGES_MAX = 255
"""How many pages are deleted by the commit that deletes the head."""
SESSION_BYTES_MAX = 120
"""How many UTF-8 bytes of a session's id stand in a name."""

Writes = list[Set | Delete]


class Head(msgspec.Struct, frozen=True):
    """What the head of a session holds."""

    session_id: str
    items: int
    pages: int
    revision: str


class Page(msgspec.Struct, frozen=True):
    """What a page holds: items as they are kept, its revision, and that of the page before."""

    revision: str
    after: str
    items: list[Any]


class Found(NamedTuple):
    """What was read of a session: its head, None where it is empty, and its last pages; None for one that is gone."""

    head: State[Any] | None
    known: Head
    pages: Sequence[State[Any] | None]

    def documents(self) -> list[Page]:
        """Return what the pages hold; nothing for those that are gone."""
        return [Page("", "", []) if page is None else read(page, Page) for page in self.pages]

    def holds_together(self) -> bool:
        """Return whether all of it was there at one moment."""
        pages = self.documents()
        joined = all(after.after == before.revision for before, after in pairwise(pages))
        whole = len(pages) < self.known.pages or not pages or pages[0].after == ""
        return joined and whole and None not in self.pages and (not pages or pages[-1].revision == self.known.revision)

    def items(self) -> list[Any]:
        """Return the items of the pages that were read."""
        return [given(data) for page in self.documents() for data in page.items]


class Last:
    """How a session was left by this process: its head and its last page, as they were committed.

    Only a writer decides on it, whose commit compares both with what is there.
    """

    def __init__(self) -> None:
        self.found: Found | None = None

    def take(self) -> Found | None:
        """Return what was left, to one writer; None where nothing is known."""
        found, self.found = self.found, None
        return found

    def left(self, place: Place, writes: Writes, made: Sequence[State[Any] | None]) -> None:
        """Note what a commit has left, where it has written the head and the last page."""
        states = {one.name: state for one, state in zip(writes, made, strict=True)}
        head = states.get(place.head)
        if head is not None and head.value is not None:
            known = read(head, Head)
            page = states.get(place.page(known.pages))
            self.found = None if page is None else Found(head, known, [page])


def read(state: State[Any], kind: type[Any]) -> Any:
    """Return what a state holds as a Head or a Page; raise CodecError where it is none."""
    try:
        return msgspec.convert(state.value, kind)
    except msgspec.ValidationError as error:
        raise CodecError(key=state.key, reason=f"it is no {kind.__name__.lower()} of a session: {error}") from None


class Place:
    """A session, and the names of its states."""

    def __init__(self, session_id: str) -> None:
        refuse_nul("session_id", session_id)
        self.session_id = session_id.encode("utf-8", "backslashreplace").decode()
        self.head = segment(session_id, SESSION_BYTES_MAX)

    def page(self, number: int) -> str:
        """Return the name of a page."""
        return f"{self.head}/items/{number:06}"

    def nothing(self) -> Found:
        """Return what is found of an empty session."""
        return Found(None, Head(self.session_id, 0, 0, ""), ())


def added(place: Place, found: Found, items: Sequence[Kept], revision: str, bytes_max: int) -> Writes:
    """Return what adds items to a session of which the last page was read; a value has at most that many bytes."""
    head, last = found.known, found.documents()[-1:]
    filled = filling(last[0].items if last else None, items, bytes_max - _FRAME_BYTES)
    if len(filled) > WRITTEN_PAGES_MAX:
        raise LimitExceeded("the number of pages that are added at once", actual=len(filled), limit=WRITTEN_PAGES_MAX)
    after, number, writes = head.revision, head.pages, Writes()
    if last and len(filled[0]) > len(last[0].items):
        writes.append(_page(place, number, Page(revision, last[0].after, filled[0]), expected=found.pages[-1]))
        after = revision
    for page in filled[1:] if last else filled:
        number += 1
        writes.append(_page(place, number, Page(revision, after, page)))
        after = revision
    grown = Head(place.session_id, head.items + len(items), number, revision)
    return [Set(place.head, msgspec.structs.asdict(grown), expected=found.head), *writes]


def filling(last: list[Any] | None, items: Sequence[Kept], most: int = VALUE_BYTES_MAX) -> list[list[Any]]:
    """Return what pages hold once items are added: the last page first, where there is one, and then new ones."""
    bytes_max = min(max(PAGE_BYTES_MAX, sum(item.size for item in items) // ADDED_PAGES), most)
    items_max = max(PAGE_ITEMS_MAX, len(items) // ADDED_PAGES)
    pages = [] if last is None else [[*last]]
    size = len(msgspec.json.encode(last)) if last else 0
    for item in items:
        if not pages or (pages[-1] and (len(pages[-1]) >= items_max or size + item.size > bytes_max)):
            pages.append([])
            size = 0
        pages[-1].append(item.data)
        size += item.size + 1
    return pages


def popped(place: Place, found: Found, revision: str) -> Writes:
    """Return what takes the last item out of a session of which the last page was read; of an empty page, the page."""
    if found.head is None:
        return []
    head, page, state = found.known, found.documents()[-1], found.pages[-1]
    items = max(head.items - len(page.items[-1:]), 0)
    if len(page.items) > 1:
        rest = Page(revision, page.after, page.items[:-1])
        left = Head(place.session_id, items, head.pages, revision)
        return [_head(place, found, left), _page(place, head.pages, rest, expected=state)]
    writes: Writes = [] if state is None else [Delete(place.page(head.pages), expected=state)]
    if head.pages <= 1:
        return [Delete(place.head, expected=found.head), *writes]
    return [_head(place, found, Head(place.session_id, items, head.pages - 1, page.after)), *writes]


def cleared(place: Place, found: Found, gone: set[str]) -> Writes:
    """Return what empties a session, but for the pages that are gone already; the first pages come first."""
    if found.head is None:
        return []
    pages = map(place.page, range(1, min(found.known.pages, CLEARED_PAGES_MAX) + 1))
    return [Delete(place.head, expected=found.head), *(Delete(page) for page in pages if page not in gone)]


def _head(place: Place, found: Found, head: Head) -> Set:
    return Set(place.head, msgspec.structs.asdict(head), expected=found.head)


def _page(place: Place, number: int, page: Page, **more: Any) -> Set:
    """Return what writes a page; a new one takes the place of whatever is there, for the head says what counts."""
    return Set(place.page(number), msgspec.structs.asdict(page), **more)
