"""What a session's states hold, and what is to be written to add, to pop and to clear: decided, not done.

A head counts the pages, whose revisions say which of them belong together. Pages before the last one are not written.
An emptied page is deleted, and the one before is the last one again. The group's own verbs keep all this, for they take
the states back together: to roll back, to undo, to branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from statecache import Create, Delete, Set, State
from statecache.adapters.items import Kept
from statecache.adapters.pages import Found, Page, added_pages, converted, head_value, log_of, with_pages
from statecache.adapters.segments import refuse_nul, segment

CLEARED_PAGES_MAX = 255
"""How many pages are deleted by the commit that deletes the head."""
SESSION_BYTES_MAX = 120
"""How many UTF-8 bytes of a session's id stand in a name."""

Writes = list[Set | Create | Delete]


class Head(msgspec.Struct, frozen=True):
    """What the head of a session holds."""

    session_id: str
    items: int
    pages: int
    revision: str
    logs: dict[str, str] = {}
    grown_as: str = ""


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
        self.pages = f"{self.head}/items/"

    def page(self, known: Head, number: int) -> str:
        """Return the name of a page."""
        log = log_of(known, number)
        return f"{self.pages}{log}/{number:06}" if log else f"{self.pages}{number:06}"

    def read(self, state: State[Any]) -> Head:
        """Return the head that a state holds; raise CodecError where it is none."""
        head: Head = converted(state, Head, "head of a session")
        return head

    def nothing(self) -> Found:
        """Return what is found of an empty session."""
        return Found(None, Head(self.session_id, 0, 0, ""), ())


def added(place: Place, found: Found, items: Sequence[Kept], revision: str, bytes_max: int) -> Writes:
    """Return what adds items to a session of which the last page was read; a value has at most that many bytes."""
    writes, known = added_pages(place, found, items, revision, bytes_max)
    grown = _changed(place, known, known.items + len(items), revision)
    return [Set(place.head, head_value(grown), expected=found.head), *writes]


def popped(place: Place, found: Found, revision: str) -> Writes:
    """Return what takes the last item out of a session of which the last page was read; of an empty page, the page."""
    if found.head is None:
        return []
    head, page, state = found.known, found.documents()[-1], found.pages[-1]
    items = max(head.items - len(page.items[-1:]), 0)
    if len(page.items) > 1:
        rest = Page(revision, page.after, page.items[:-1])
        left = _changed(place, with_pages(found, head.pages), items, revision)
        last = Set(place.page(head, head.pages), msgspec.structs.asdict(rest), expected=state)
        return [_head(place, found, left), last]
    writes: Writes = [] if state is None else [Delete(place.page(head, head.pages), expected=state)]
    if head.pages <= 1:
        return [Delete(place.head, expected=found.head), *writes]
    return [_head(place, found, _changed(place, with_pages(found, head.pages - 1), items, page.after)), *writes]


def cleared(place: Place, found: Found, gone: set[str]) -> Writes:
    """Return what empties a session, but for the pages that are gone already; the first pages come first."""
    if found.head is None:
        return []
    numbers = range(1, min(found.known.pages, CLEARED_PAGES_MAX) + 1)
    pages = [place.page(found.known, number) for number in numbers]
    return [Delete(place.head, expected=found.head), *(Delete(page) for page in pages if page not in gone)]


def _changed(place: Place, known: Head, items: int, revision: str) -> Head:
    return msgspec.structs.replace(known, session_id=place.session_id, items=items, revision=revision)


def _head(place: Place, found: Found, head: Head) -> Set:
    return Set(place.head, head_value(head), expected=found.head)
