"""Taking in what CrewAI's own persistence keeps in SQLite: `statecache import crewai-sqlite FILE`.

Each save of a flow becomes a version of its state, the first one first. What is there already is passed over where it
is the same, so an import that was cut off, or is made again later, adds what is missing. A flow that was saved here
since is left alone, and named.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache import Delete, NotFound, Set, State, VersionConflict
from statecache.adapters.crewai.persistence import NAMESPACE, flow_name
from statecache.adapters.items import kept
from statecache.adapters.sqlite_files import reading

if TYPE_CHECKING:
    from statecache import AsyncNamespace, AsyncStateCache, Durability

IMPORT = "import"


class ImportedFlows(msgspec.Struct, kw_only=True):
    """What an import did: saves by what became of them, and flows that hold something else here."""

    flows: int = 0
    written: int = 0
    same: int = 0
    kept: list[str] = []


class StoredFlow(NamedTuple):
    """A flow's id, what it came to at each save, with the method that finished, and what it waits for."""

    flow_uuid: str
    saves: list[tuple[str, Any]]
    pending: dict[str, Any] | None


async def import_flows(
    flows: Iterable[StoredFlow], cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedFlows:  # fmt: skip
    """Add what flows came to to those of the same id; `progress` is told how many saves it has gone through."""
    done, view = ImportedFlows(), cache.namespace(namespace, durability=durability)
    for one in flows:
        done.flows += 1
        name = flow_name(one.flow_uuid)
        values = [kept(value, at).data for at, (_, value) in enumerate(one.saves)]
        there: State[Any] | None = await view.get(name, read="primary")
        count = 0 if there is None else there.version
        if there is not None and not _is_one_of(there, count, values):
            count -= await _deleted_at(view, name)
            if not _is_one_of(there, count, values):
                done.kept.append(one.flow_uuid)
                continue
        done.same += count
        try:
            for (method, _), value in zip(one.saves[count:], values[count:], strict=True):
                if not dry_run:
                    (there,) = await view.commit([Set(name, value, expected=there)], reason=method)
                done.written += 1
                progress(done.same + done.written)
            if not dry_run:
                await _take_in_pending(view, f"{name}/pending", one.pending)
        except (VersionConflict, NotFound):  # somebody goes on with it just now
            done.kept.append(one.flow_uuid)
    return done


def _is_one_of(there: State[Any], count: int, values: Sequence[Any]) -> bool:
    """Return whether it is what the first so many saves came to."""
    return 0 < count <= len(values) and bool(there.value == values[count - 1])


async def _take_in_pending(view: AsyncNamespace[Any], name: str, pending: dict[str, Any] | None) -> None:
    """Have a flow wait for what it waits for there, unless it has paused or was resumed here."""
    there: State[Any] | None = await view.get(name, read="primary")
    newest = [change async for change in view.history(name, reverse=True, limit=1)]
    if newest and newest[0].reason != IMPORT:
        return
    if pending is not None:
        value = {part: kept(one, 0).data for part, one in pending.items()}
        if there is None or there.value != value:
            await view.commit([Set(name, value, expected=there)], reason=IMPORT)
    elif there is not None:
        await view.commit([Delete(name, expected=there)], reason=IMPORT)


async def _deleted_at(view: AsyncNamespace[Any], name: str) -> int:
    """Return the version at which a flow was deleted last, or 0: what was taken in since counts on from there."""
    async for change in view.history(name, reverse=True):
        if change.op == "delete":
            return change.version
    return 0


def sqlite_flows(source: Path) -> Iterator[StoredFlow]:
    """Yield what the flows in a file of SQLite came to; nothing is written there.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no flows of CrewAI.
    """
    hint = "SQLiteFlowPersistence(FILE) writes such files."
    with reading(source, what="flows of CrewAI", hint=hint) as rows:
        yield from _flows(rows)


def _flows(rows: sqlite3.Connection) -> Iterator[StoredFlow]:
    saves = "SELECT method_name, state_json FROM flow_states WHERE flow_uuid = ? ORDER BY id"
    waits = "SELECT context_json, state_json FROM pending_feedback WHERE flow_uuid = ?"
    for (flow_uuid,) in rows.execute("SELECT DISTINCT flow_uuid FROM flow_states ORDER BY flow_uuid"):
        found = [(method, json.loads(state)) for method, state in rows.execute(saves, (flow_uuid,))]
        waiting = rows.execute(waits, (flow_uuid,)).fetchone()
        pending = None if waiting is None else {"context": json.loads(waiting[0]), "state": json.loads(waiting[1])}
        yield StoredFlow(flow_uuid, found, pending)
