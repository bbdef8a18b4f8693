"""The logs of conversations, seen from one client: lines are found, and what a save adds is one commit.

A reader takes the record and the pages that this process has, and follows the entries back from the one that is asked
for. Where one is missing, what is here is old: all is read again from the primary.

A writer decides on what this process has first, in one exchange if that is still so. Each later attempt reads the
primary. It commits over the record and the page that it has read, and nothing else: what somebody has saved or edited
meanwhile is never written over.
"""

from __future__ import annotations

from contextlib import suppress
from math import ceil
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic_ai.conversation_store import ConversationConflict

from statecache import (
    Create,
    Delete,
    DurabilityNotMet,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Set,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from statecache.adapters.applied import is_applied, nothing_written
from statecache.adapters.filling import FRAME_BYTES, WRITTEN_PAGES_MAX
from statecache.adapters.items import Kept
from statecache.adapters.pages import Found, new_page, with_pages
from statecache.adapters.plans import arun
from statecache.adapters.pydantic_ai.documents import (
    EntryId,
    Extent,
    Head,
    Line,
    Page,
    Place,
    head_of,
    line_of,
    pages_of,
    place_of,
    read,
    spelled,
)
from statecache.adapters.remains import OPENING, delete_remains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord

    from statecache import AsyncNamespace, Durability, ReadMode, State

ATTEMPTS_MAX = 20
"""How often something is tried to be written while others edit the same states and leave the record as it is."""
_STATES_PER_COMMIT = 250
_COMMIT_BYTES_MAX = 12 * 1024 * 1024
"""What of a log that nobody sees yet is written at once."""
Lines = list[tuple[str, Line]]


class Logs:
    """The logs of all conversations of a namespace."""

    def __init__(self, view: AsyncNamespace[Any], namespace: str, *, bytes_max: int) -> None:
        self._view, self._namespace, self._bytes_max = view, namespace, bytes_max

    def group(self, place: Place) -> str:
        """Return the key of a conversation's group."""
        return f"{self._namespace}/{place.head}"

    async def history(self, entry_id: str, limit: int | None) -> tuple[str, Lines]:
        """Return the lines up to an entry, or the last ones, and their group; raise KeyError where one is missing."""
        place = await self._place_of_entry(entry_id)
        return self.group(place), await self._lines(place, entry_id, limit)

    async def write(
        self, record: ConversationRecord, entries: Sequence[ConversationEntry], expected_revision: str | None
    ) -> None:
        """Write a record and the entries that it adds, in one commit, or raise ConversationConflict."""
        place = place_of(record.conversation_id)
        lines = [line_of(entry, at) for at, entry in enumerate(entries)]
        asked, shared = False, list[tuple[str, Kept]]()
        failed: StateCacheError = UsageError(f"nothing came of {ATTEMPTS_MAX} attempts")
        for attempt in range(ATTEMPTS_MAX):
            found = await self._found(place, "primary" if attempt else "local")
            revision = None if found.head is None else found.known.revision
            if revision != expected_revision:
                if attempt:
                    raise ConversationConflict(record.conversation_id)
                continue
            if attempt < 2:
                shared = await self._shared(place, found, record, entries)
            ahead = list[str]()
            try:
                writes, ahead = await self._added(place, found, record, [*shared, *lines])
                await self._view.commit(writes, reason="save")
            except (VersionConflict, NotFound) as error:
                failed = error
            except OutcomeUnknown as error:
                if asked:
                    raise
                if await arun(self._view, is_applied(error, place.head)):
                    return
                asked, failed = True, error
            except DurabilityNotMet:  # which is applied
                raise
            except StateCacheError:
                await self._take_back(ahead)
                raise
            else:
                return
            await self._take_back(ahead)
        raise failed

    async def delete(self, conversation_id: str, expected_revision: str) -> None:
        """Delete a record and its log; the pages beyond what one commit takes are deleted after it."""
        place, gone, asked = place_of(conversation_id), set[str](), False
        failed: StateCacheError = UsageError(f"nothing came of {ATTEMPTS_MAX} attempts")
        lacking: DurabilityNotMet | None = None
        for _ in range(ATTEMPTS_MAX):
            found = await self._found(place, "primary", page=False)
            if found.head is None or found.known.revision != expected_revision:
                raise ConversationConflict(conversation_id)
            pages = [place.page(found.known, number) for number in range(1, found.known.pages + 1)]
            now = [page for page in pages[:_STATES_PER_COMMIT] if page not in gone]
            try:
                await self._view.commit([Delete(place.head, expected=found.head), *map(Delete, now)], reason="delete")
            except (VersionConflict, NotFound) as error:
                failed = error
                if isinstance(error, NotFound):
                    gone.add(error.key.partition("/")[2])
                continue
            except DurabilityNotMet as error:  # which is applied
                lacking = error
            except OutcomeUnknown as error:
                if asked:
                    raise
                asked, failed = True, error
                if not await arun(self._view, is_applied(error, place.head)):
                    continue
            if pages[_STATES_PER_COMMIT:]:
                level: Durability | None = None if lacking is None else "memory"
                await self._view.delete_many(pages[_STATES_PER_COMMIT:], reason="delete", durability=level)
            if lacking is not None:
                raise lacking
            return
        raise failed

    async def delete_remains(self, conversation_id: str) -> None:
        """Delete what a process that was killed has left of a log whose record it had deleted."""
        place = place_of(conversation_id)
        await arun(self._view, delete_remains(place.head, place.pages, "delete"))

    async def _found(self, place: Place, mode: ReadMode, *, page: bool = True) -> Found:
        head = await self._view.get(place.head, read=mode)
        if head is None:
            return Found(None, Extent(log=token_hex(4)), [])
        known: Head = read(head, Head)
        last = [await self._view.get(place.page(known, known.pages), read=mode)] if known.pages and page else []
        return Found(head, known, last)

    async def _lines(self, place: Place, entry_id: str, limit: int | None) -> Lines:
        try:
            return await self._followed(place, entry_id, limit, "local")
        except KeyError:
            return await self._followed(place, entry_id, limit, "primary")

    async def _followed(self, place: Place, entry_id: str, limit: int | None, mode: ReadMode) -> Lines:
        """Follow the entries back from one, and read pages, the last ones first, as they are needed."""
        state = await self._view.get(place.head, read=mode)
        missing = f"there is no entry {{}} in {self.group(place)}"
        if state is None:
            raise KeyError(missing.format(entry_id))
        known: Head = read(state, Head)
        more = known.pages if limit is None else ceil(limit * known.pages / max(known.entries, 1)) + 1
        lines, there, unread = Lines(), dict[str, Line](), known.pages
        at: str | None = entry_id
        while at is not None and (limit is None or len(lines) < limit):
            name = spelled(at)
            if name in there:
                lines.append((at, there[name]))
                at = there[name]["parent"]
            elif unread:
                first = max(unread - more, 0)
                names = [place.page(known, number) for number in range(first + 1, unread + 1)]
                states = await self._view.get_many(names, read=mode)
                for page in states.values():
                    there |= {} if page is None else read(page, Page).entries
                unread, more = first, more * 2
            else:
                raise KeyError(missing.format(at))
        return lines[::-1]

    async def _place_of_entry(self, entry_id: str) -> Place:
        """Return a conversation that has an entry: the one that its id knows, or one that is looked for."""
        if isinstance(entry_id, EntryId) and entry_id.group.startswith(f"{self._namespace}/"):
            return Place(entry_id.group.removeprefix(f"{self._namespace}/"))
        where = {f"entries.{spelled(entry_id)}.kind": "message"}
        for limit in (1, None):  # what a killed process has left of a save may come first, and is of no conversation
            async for state in self._view.list("", where=where, values=False, limit=limit):
                place = Place(state.key.split("/")[1])
                if await self._view.get(place.head) is not None:
                    return place
        raise KeyError(f"there is no entry {entry_id} in the namespace {self._namespace}")

    async def _shared(
        self, place: Place, found: Found, record: ConversationRecord, entries: Sequence[ConversationEntry]
    ) -> list[tuple[str, Kept]]:
        """Return the lines of other conversations that the history goes on from, or raise ConversationConflict."""
        added, lines = {entry.id for entry in entries}, dict[str, Line]()
        for entry_id in (entries[0].parent_id if entries else None, record.head_id):
            if entry_id is None or entry_id in added or entry_id in lines:
                continue
            if found.head is not None:
                if entry_id in (found.known.head_id, *found.known.branches):
                    continue
                try:
                    await self._lines(place, entry_id, 1)
                except KeyError:
                    pass
                else:
                    continue
            try:
                lines |= (await self.history(entry_id, None))[1]
            except KeyError:
                raise ConversationConflict(record.conversation_id) from None
        return [(entry_id, Kept(line, len(msgspec.json.encode(line)) + 50)) for entry_id, line in lines.items()]

    async def _added(
        self, place: Place, found: Found, record: ConversationRecord, lines: Sequence[tuple[str, Kept]]
    ) -> tuple[list[Set | Create | Delete], list[str]]:
        """Return what writes a record and adds lines, and the names of what was written before, of a new log.

        That is what one commit cannot take.
        """
        known: Extent = found.known
        page = found.pages[-1] if found.pages else None
        last = None if page is None else read(page, Page).entries
        filled = pages_of(last, lines, self._bytes_max) if lines else []
        sets: list[Set | Create] = []
        if last is not None and filled:
            grown, filled = filled[0], filled[1:]
            if len(grown.entries) > len(last):
                sets.append(Set(place.page(known, known.pages), msgspec.structs.asdict(grown), expected=page))
        if found.head is not None and len(filled) > WRITTEN_PAGES_MAX - len(sets):
            what = "the number of pages that are added at once"
            raise LimitExceeded(what, actual=len(filled), limit=WRITTEN_PAGES_MAX - len(sets))
        extent: Extent = with_pages(found, known.pages + len(filled))
        new = [new_page(place, found, extent, number, one) for number, one in enumerate(filled, known.pages + 1)]
        head = head_of(record, msgspec.structs.replace(extent, entries=known.entries + len(lines)))
        writes = [Set(place.head, head, expected=found.head), *sets]
        if found.head is not None:
            return [*writes, *new], []
        opening, left = await self._written_ahead(place.page(extent, OPENING), new, len(msgspec.json.encode(head)))
        if opening is None:
            return [*writes, *new], []
        gone = Delete(place.page(extent, OPENING), expected=opening)
        return [*writes, gone, *new[left:]], [gone.name, *(one.name for one in new[:left])]

    async def _written_ahead(
        self, name: str, new: Sequence[Set | Create], record_size: int
    ) -> tuple[State[Any] | None, int]:
        """Write the first pages of a large log that no record names yet; return the log's opening, and how many.

        Each part writes the opening, and the commit of the record takes it away: whatever has taken back a part, or
        has deleted the opening since, leaves no record without its pages.
        """
        sizes = [len(msgspec.json.encode(one.value)) + FRAME_BYTES for one in new]
        left, size, opening = 0, sum(sizes) + record_size, None
        while size > _COMMIT_BYTES_MAX or len(new) - left > _STATES_PER_COMMIT:
            upto, taken = left, 0
            while upto < len(new) - 1 and upto - left < _STATES_PER_COMMIT:
                if taken and taken + sizes[upto] > _COMMIT_BYTES_MAX:
                    break
                taken, upto = taken + sizes[upto], upto + 1
            if upto == left:
                break
            try:
                with nothing_written("save"):
                    part = [Set(name, msgspec.structs.asdict(Page({})), expected=opening), *new[left:upto]]
                    opening = (await self._view.commit(part, reason="save"))[0]
            except StateCacheError:
                await self._take_back([name, *(one.name for one in new[:upto])])
                raise
            left, size = upto, size - taken
        return opening, left

    async def _take_back(self, names: Sequence[str]) -> None:
        """Delete pages that no record names, as far as that can be done: nobody waits for it."""
        if names:
            with suppress(StateCacheError):
                await self._view.delete_many(names, reason="save", durability="memory")
