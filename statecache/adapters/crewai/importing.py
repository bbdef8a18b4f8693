"""Taking in what CrewAI's own persistence keeps in SQLite: `statecache import crewai-sqlite FILE`.

Each save of a flow becomes a version of its state, the first one first. What is there already is passed over where it
is the same, so an import that was cut off, or is made again later, adds what is missing. A flow that was saved, rolled
back, deleted or erased here since, or that lost saves there, is left alone, and named. One that cannot be taken in is
named too, and those after it are taken in.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache import Delete, Set, State, VersionConflict
from statecache.adapters.crewai.persistence import NAMESPACE, flow_name, reason_of
from statecache.adapters.imported import IMPORT, NOT_READ, Unreadable, newest, proven, refuse_larger, take_in, was_here
from statecache.adapters.items import given, kept, same
from statecache.adapters.sqlite_files import moment, names, reading

if TYPE_CHECKING:
    from statecache import AsyncNamespace, AsyncStateCache, Durability


class ImportedFlows(msgspec.Struct, kw_only=True):
    """What an import did: saves by what became of them, flows that were left alone, and why others were refused."""

    flows: int = 0
    written: int = 0
    same: int = 0
    kept: list[str] = []
    failed: dict[str, str] = {}


class StoredFlow(NamedTuple):
    """A flow's id, what it came to at each save, with the method that finished, and what it waits for."""

    flow_uuid: str
    saves: list[tuple[str, Any]]
    pending: dict[str, Any] | None


async def import_flows(
    flows: Iterable[StoredFlow | Unreadable], cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedFlows:  # fmt: skip
    """Add what flows came to to those of the same id; `progress` is told how many saves it has gone through."""
    view = cache.namespace(namespace, durability=durability)
    taking = _Taking(view, cache.settings.value_bytes_max, dry_run=dry_run, progress=progress)
    for one in flows:
        taking.done.flows += 1
        if isinstance(one, Unreadable):
            one.note(taking.done)
        else:
            await take_in(one.flow_uuid, partial(taking.flow, one), taking.done)
    return taking.done


class _Taking:
    """One import, and what it has done so far."""

    def __init__(
        self, view: AsyncNamespace[Any], bytes_max: int, *, dry_run: bool, progress: Callable[[int], object]
    ) -> None:
        self.done = ImportedFlows()
        self._view, self._bytes_max, self._dry_run, self._progress = view, bytes_max, dry_run, progress

    async def flow(self, one: StoredFlow) -> None:
        """Take in what is missing of a flow: nothing of it where one save is too large."""
        name = flow_name(one.flow_uuid)
        values = [kept(value, at) for at, (_, value) in enumerate(one.saves)]
        pending = one.pending and {part: kept(value, 0).data for part, value in one.pending.items()}
        there: State[Any] | None = await self._view.get(name, read="primary")
        if not await self._is_as_saved(name, there, one):
            self.done.kept.append(one.flow_uuid)
            return
        count = 0 if there is None else there.version
        refuse_larger("a save", (value.size for value in values[count:]), self._bytes_max)
        refuse_larger("what it waits for", [len(msgspec.json.encode(pending))], self._bytes_max)
        self.done.same += count
        for (method, _), value in zip(one.saves[count:], values[count:], strict=True):
            if not self._dry_run:
                (there,) = await self._view.commit([Set(name, value.data, expected=there)], reason=reason_of(method))
            self.done.written += 1
            self._progress(self.done.same + self.done.written)
        if not self._dry_run:
            await proven(self._view, there)
            await self._take_in_pending(f"{name}/pending", pending)

    async def _is_as_saved(self, name: str, there: State[Any] | None, one: StoredFlow) -> bool:
        """Return whether a flow was never here, or each of its versions is one of the saves, the last of them here."""
        if there is None:
            return not await was_here(self._view, name)
        if there.version > len(one.saves):
            return False
        method, value = one.saves[there.version - 1]
        if not same(given(there.value), value):
            return False
        change = await newest(self._view, name)
        if change is not None and change.version > there.version:
            raise VersionConflict(there.key, there.change_id, change.change_id)
        return change is not None and change.reason == reason_of(method)

    async def _take_in_pending(self, name: str, pending: dict[str, Any] | None) -> None:
        """Have a flow wait for what it waits for there, unless it has paused or was resumed here."""
        there: State[Any] | None = await self._view.get(name, read="primary")
        change = await newest(self._view, name)
        if change is not None and change.reason != IMPORT:
            return
        if pending is not None:
            if there is None or not same(there.value, pending):
                await self._view.commit([Set(name, pending, expected=there)], reason=IMPORT)
            else:
                await proven(self._view, there)
        elif there is not None:
            await self._view.commit([Delete(name, expected=there)], reason=IMPORT)


def sqlite_flows(source: Path) -> Iterator[StoredFlow | Unreadable]:
    """Yield what the flows in a file of SQLite came to, or why that cannot be read; nothing is written there.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no flows of CrewAI.
    """
    hint = "SQLiteFlowPersistence(FILE) writes such files."
    with reading(source, what="flows of CrewAI", hint=hint) as rows:
        yield from _flows(rows)


def _flows(rows: sqlite3.Connection) -> Iterator[StoredFlow | Unreadable]:
    with names(rows):
        every = rows.execute("SELECT DISTINCT flow_uuid FROM flow_states ORDER BY flow_uuid").fetchall()
    for (flow_uuid,) in every:
        yield _flow(rows, flow_uuid)


def _flow(rows: sqlite3.Connection, flow_uuid: str) -> StoredFlow | Unreadable:
    saves = "SELECT method_name, state_json FROM flow_states WHERE flow_uuid = ? ORDER BY id"
    waits = "SELECT context_json, state_json FROM pending_feedback WHERE flow_uuid = ?"
    try:
        with moment(rows):
            saved = rows.execute(saves, (flow_uuid,)).fetchall()
            waiting = rows.execute(waits, (flow_uuid,)).fetchone()
        found = [(method, json.loads(state)) for method, state in saved]
        pending = None if waiting is None else {"context": json.loads(waiting[0]), "state": json.loads(waiting[1])}
    except NOT_READ as error:
        return Unreadable(flow_uuid, error)
    return StoredFlow(flow_uuid, found, pending)
