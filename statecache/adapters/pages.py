"""Pages that belong together: a head that counts them, and plans that read the last ones, or all, as of one moment.

Each page names the revision of the page before it as that was when the page was begun, and the head that of the last
page. A revision is drawn for each commit that writes pages, so one of them stands for one content of a page, and the
chain of them for one content of all. States that were read at several moments hold together if their revisions do, and
only then:

    head {pages: 2, revision: b}      page 2 {revision: b, after: a}      page 1 {revision: a, after: ""}

A reader asks for the head, and takes pages from this process where it has them: their revisions say whether they are
the ones. If not, head and pages are read from the primary. Where these do not hold together either, somebody has
written in between, or has edited a state by itself: the head is read again, and if it is the same one still, what was
read between the two is what there is.

New pages get names that no page has ever had, so they are created on the adapter's word, and Postgres is not asked: a
conversation that is in Redis goes on while Postgres is away. A number alone may come again, where pages were taken out,
or `undo`, `rollback`, `merge` or an import has put an older head in the place of a newer one. So the head names the
change that it was written over, if pages were only added since its last log began. Where it stands on another one,
somebody else has put it there, and the next page begins a log with a name of its own:

    head {pages: {count: 5, logs: {2: 5e0c, 4: 91aa}}, grown_as: CHANGE}     pages LOG/1, 5e0c/2, 5e0c/3, 91aa/4, 91aa/5

Of logs there are LOGS_MAX at most: where pages come and go all the time, the name of a new one is looked for again. A
release that knows of no logs finds no number of pages in such a head, and refuses it: it would take them for gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from statecache import CodecError, Create, LimitExceeded, Set, State, VersionConflict
from statecache.adapters.filling import FRAME_BYTES, WRITTEN_PAGES_MAX, filling
from statecache.adapters.items import Kept, given
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from statecache import ReadMode

ATTEMPTS_MAX = 50
"""How often something is read, or tried to be written, that others are writing to."""


LOGS_MAX = 100
"""How many logs a conversation begins beside its first one."""


class Page(msgspec.Struct, frozen=True):
    """What a page holds: items as they are kept, its revision, and that of the page before."""

    revision: str
    after: str
    items: list[Any]


PAGE_FRAME_BYTES = len(msgspec.json.encode(Page("0" * 16, "", [])))
"""What a page has beside its items, at least."""


class Named(Protocol):
    """What tells the names of a head and of its pages."""

    @property
    def head(self) -> str:
        """The name of the head."""

    def page(self, known: Any, number: int, /) -> str:
        """Return the name of a page."""


class Place(Named, Protocol):
    """Where a head and its pages are."""

    def read(self, state: State[Any], /) -> Any:
        """Return the head that a state holds; raise CodecError where it is none."""

    def nothing(self) -> Found:
        """Return what is found where there is no head."""


class Found(NamedTuple):
    """What was read: the head, None where there is none, and the last pages; None for one that is gone."""

    head: State[Any] | None
    known: Any
    pages: Sequence[State[Any] | None]

    def documents(self) -> list[Page]:
        """Return what the pages hold; nothing for those that are gone."""
        return [Page("", "", []) if page is None else read_page(page) for page in self.pages]

    def holds_together(self) -> bool:
        """Return whether all of it was there at one moment."""
        pages = self.documents()
        joined = all(after.after == before.revision for before, after in pairwise(pages))
        whole = len(pages) < self.known.pages or not pages or pages[0].after == ""
        return joined and whole and None not in self.pages and (not pages or pages[-1].revision == self.known.revision)

    def items(self) -> list[Any]:
        """Return the items of the pages that were read."""
        return [given(data) for page in self.documents() for data in page.items]


def converted(state: State[Any], kind: type[Any], what: str) -> Any:
    """Return what a state holds; raise CodecError where it is none of what it should be."""
    value = state.value
    if isinstance(value, dict) and isinstance(numbered := value.get("pages"), dict):
        value = value | {"pages": numbered.get("count"), "logs": numbered.get("logs")}
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CodecError(key=state.key, verb="decoded", reason=f"it is no {what}: {error}") from None


def read_page(state: State[Any]) -> Page:
    """Return the page that a state holds; raise CodecError where it is none."""
    page: Page = converted(state, Page, "page of items")
    return page


def head_value(head: msgspec.Struct) -> dict[str, Any]:
    """Return what the state of a head holds."""
    value: dict[str, Any] = msgspec.to_builtins(head)
    if logs := value.pop("logs"):
        value["pages"] = {"count": value["pages"], "logs": logs}
    return value if value["grown_as"] else {name: one for name, one in value.items() if name != "grown_as"}


def log_of(known: Any, number: int) -> str:
    """Return the log that a page is in, the last one that begins at it or before; '' where that has no name."""
    begins: int = max((int(one) for one in known.logs if int(one) <= number), default=0)
    return str(known.logs[str(begins)] if begins else getattr(known, "log", ""))


def with_pages(found: Found, count: int) -> Any:
    """Return what is known with that many pages instead; where it can be, the new ones get names that none has had."""
    known, head = found.known, found.head
    if head is None:
        logs = {"2": token_hex(4)} if count > 1 and not log_of(known, 1) else {}
        return msgspec.structs.replace(known, pages=count, logs=logs, grown_as="")
    is_grown, logs = known.grown_as == head.parent_change_id != "" and count >= known.pages, known.logs
    if count != known.pages and not is_grown:
        logs = {begins: log for begins, log in logs.items() if int(begins) <= min(count, known.pages)}
    if count > known.pages and not is_grown and len(logs) < LOGS_MAX:
        is_grown, logs = True, logs | {str(known.pages + 1): token_hex(4)}
    grown_as = head.change_id if is_grown else ""
    return msgspec.structs.replace(known, pages=count, logs=logs, grown_as=grown_as)


def new_page(place: Named, found: Found, known: Any, number: int, page: msgspec.Struct) -> Set | Create:
    """Return what writes a page that was not there; one whose name may have been there before is looked for."""
    name, value = place.page(known, number), msgspec.structs.asdict(page)
    is_new = known.grown_as if found.head is not None else log_of(known, number)
    return Create(name, value, assume_new=True) if is_new else Set(name, value)


def added_pages(
    place: Place, found: Found, items: Sequence[Kept], revision: str, bytes_max: int
) -> tuple[list[Set | Create], Any]:
    """Return what adds items behind the last page, which was read, and what is known of the pages then.

    `bytes_max` is what a value has at most. Pages before the last one are not written.
    """
    last = found.documents()[-1:]
    filled = filling(last[0].items if last else None, items, bytes_max - FRAME_BYTES)
    if len(filled) > WRITTEN_PAGES_MAX:
        raise LimitExceeded("the number of pages that are added at once", actual=len(filled), limit=WRITTEN_PAGES_MAX)
    after, number, writes = found.known.revision if last else "", found.known.pages, list[Set | Create]()
    known = with_pages(found, number + len(filled) - len(last))
    if last and len(filled[0]) > len(last[0].items):
        page = Page(revision, last[0].after, filled[0])
        writes.append(Set(place.page(known, number), msgspec.structs.asdict(page), expected=found.pages[-1]))
        after = revision
    for new in filled[len(last) :]:
        number += 1
        writes.append(new_page(place, found, known, number, Page(revision, after, new)))
        after = revision
    return writes, known


def read_pages(
    place: Place, limit: int | Callable[[int], int] | None, *, head: ReadMode, pages: ReadMode
) -> Plan[Found]:
    """Read the head and as many pages as hold that many items, the last page at least; all without a limit.

    A function is asked for the limit, given how many items there are.
    """
    found, before, change_id = None, "", ""
    for _ in range(ATTEMPTS_MAX):
        state = yield from call("get", place.head, read=head)
        if state is None:
            return place.nothing()
        change_id = state.change_id
        if found is not None and before == change_id:
            return found
        found = yield from _last_pages(place, state, limit, pages)
        if found.holds_together():
            return found
        before = change_id if (head, pages) == ("primary", "primary") else ""
        head = pages = "primary"
    raise VersionConflict(place.head, before, change_id)


def _last_pages(
    place: Place, head: State[Any], limit: int | Callable[[int], int] | None, mode: ReadMode
) -> Plan[Found]:
    known, pages = place.read(head), list["State[Any] | None"]()
    if callable(limit):
        limit = limit(known.items)
    first = known.pages + 1
    more = known.pages if limit is None else ceil(limit * known.pages / max(known.items, 1)) + bool(limit)
    while first > 1:
        upto, first = first, max(first - max(more, 1), 1)
        names = [place.page(known, number) for number in range(first, upto)]
        states = yield from call("get_many", names, read=mode)
        pages = [*states.values(), *pages]
        found = Found(head, known, pages)
        missing = 0 if limit is None else limit - sum(len(page.items) for page in found.documents())
        if missing <= 0:
            return found
        more = known.pages - first + 1
    return Found(head, known, pages)
