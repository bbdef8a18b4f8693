"""What a session's states hold, and what is to be written to add, to pop and to clear: decided, not done.

A head counts the pages, whose revisions say which of them belong together. Pages before the last one are not written.
An emptied page is deleted, and the one before is the last one again. The group's own verbs keep all this, for they take
the states back together: to roll back, to undo, to branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from statecache import Delete, LimitExceeded, Set, State
from statecache.adapters.filling import FRAME_BYTES, WRITTEN_PAGES_MAX, filling
from statecache.adapters.items import Kept
from statecache.adapters.pages import Found, Page, converted
from statecache.adapters.segments import refuse_nul, segment

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
            known = place.read(head)
            page = states.get(place.page(known, known.pages))
            self.found = None if page is None else Found(head, known, [page])


class Place:
    """A session, and the names of its states."""

    def __init__(self, session_id: str) -> None:
        refuse_nul("session_id", session_id)
        self.session_id = session_id.encode("utf-8", "backslashreplace").decode()
        self.head = segment(session_id, SESSION_BYTES_MAX)

    def page(self, _known: Head, number: int) -> str:
        """Return the name of a page, which is the same whatever the head says."""
        return f"{self.head}/items/{number:06}"

    def read(self, state: State[Any]) -> Head:
        """Return the head that a state holds; raise CodecError where it is none."""
        head: Head = converted(state, Head, "head of a session")
        return head

    def nothing(self) -> Found:
        """Return what is found of an empty session."""
        return Found(None, Head(self.session_id, 0, 0, ""), ())


def added(place: Place, found: Found, items: Sequence[Kept], revision: str, bytes_max: int) -> Writes:
    """Return what adds items to a session of which the last page was read; a value has at most that many bytes."""
    head, last = found.known, found.documents()[-1:]
    filled = filling(last[0].items if last else None, items, bytes_max - FRAME_BYTES)
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
    writes: Writes = [] if state is None else [Delete(place.page(head, head.pages), expected=state)]
    if head.pages <= 1:
        return [Delete(place.head, expected=found.head), *writes]
    return [_head(place, found, Head(place.session_id, items, head.pages - 1, page.after)), *writes]


def cleared(place: Place, found: Found, gone: set[str]) -> Writes:
    """Return what empties a session, but for the pages that are gone already; the first pages come first."""
    if found.head is None:
        return []
    numbers = range(1, min(found.known.pages, CLEARED_PAGES_MAX) + 1)
    pages = [place.page(found.known, number) for number in numbers]
    return [Delete(place.head, expected=found.head), *(Delete(page) for page in pages if page not in gone)]


def _head(place: Place, found: Found, head: Head) -> Set:
    return Set(place.head, msgspec.structs.asdict(head), expected=found.head)


def _page(place: Place, number: int, page: Page, **more: Any) -> Set:
    """Return what writes a page; a new one takes the place of whatever is there, for the head says what counts."""
    return Set(f"{place.head}/items/{number:06}", msgspec.structs.asdict(page), **more)
