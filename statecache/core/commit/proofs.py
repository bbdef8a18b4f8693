"""Proving that changes which were found are as durable as a write has to be: what is there already, or gone already.

Who finds that what he was to write is there, or that what he was to delete is gone, writes nothing. Whoever did it may
never have learnt how durable it is, or was told that it is not durable enough; so the repeat of his call has to wait
for that, as the first call did, before it is acknowledged.

    postgres         each of the changes is in Postgres
    replica, disk    the newest of each shard is confirmed by its server, and copies are counted behind that: what was
                     written to that server before is in them, too
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic
from statecache.core.commit.durability_support import COPIED
from statecache.core.commit.durable import HELD, NOWHERE
from statecache.core.read.listed import Listed
from statecache.errors import Lost, RedisUnavailable
from statecache.keys import checked_key, checked_prefix_of_list
from statecache.model import BLIND, Position, Record, Write
from statecache.rules.filters import Selection

if TYPE_CHECKING:
    from statecache.core.commit.durable import Ask
    from statecache.core.runtime import Runtime
    from statecache.core.view import View

_UNCOUNTED = "it is applied, and how many copies of it there are was not learnt"


async def prove(view: View[Any], names: Sequence[str], prefixes: Sequence[str], end: float) -> None:
    """Return once the newest changes of names, and of what Postgres may lack below prefixes, are as durable as a write.

    Deletes are such changes. Raises what a commit raises that is applied and not known to be as durable as it has to
    be: OutcomeUnknown or DurabilityNotMet; and Forked, Quarantined or Lost for a change that was set aside, or is gone.
    """
    level, runtime = view.durability_of(None), view.runtime
    if level == "memory":
        return
    named = await runtime.many.primary([checked_key(view.full(name)) for name in names], end=end) if names else {}
    below = [record for prefix in prefixes for record in await _dirty(runtime, view.full(prefix), end)]
    for shard, records in _by_shard(runtime, [*named.values(), *below]).items():
        await runtime.committer.prepare(level, shard, end=end)
        if level in COPIED:
            await _copied(runtime, max(records, key=_position), shard, level, end)
        else:
            for record in records:
                place = Position.parse(record.position)
                await stands(view, record.key, record.change_id, place, end, ask=record.key in named)


async def stands(
    view: View[Any], key: str, change_id: str, position: Position | None, end: float, *, ask: bool = False
) -> None:
    """Return once Postgres holds a change; raise Forked, Quarantined or Lost where it never will.

    With `ask` Postgres itself has to say so, as of a change that was not made just now.
    """
    runtime = view.runtime
    shard, place = runtime.keys.shard(key), position or NOWHERE
    when: Ask = "always" if ask else "if doubtful"
    ended = await runtime.durable.wait(shard, place, change_id, [key], end=end, ask=when)
    if ended != HELD:
        raise Lost(key, change_id, position=position, epoch=max(ended, place.epoch))


async def _dirty(runtime: Runtime, prefix: str, end: float) -> list[Record]:
    """Return what Redis holds below a prefix that Postgres may not have yet, tombstones too."""
    whole, shard = checked_prefix_of_list(prefix, runtime.keys.shards)
    shards = range(runtime.keys.shards) if shard is None else [shard]
    listed = Listed(selection=Selection(prefix=whole), values=False)
    overlay = await runtime.listing.overlay(listed, shards, max(end - monotonic(), 0.001))
    return [*overlay.records.values()]


def _by_shard(runtime: Runtime, records: Iterable[Record]) -> dict[int, list[Record]]:
    """Return the records that a change has made, by their shards."""
    by_shard: dict[int, list[Record]] = {}
    for record in records:
        if record.change_id:
            by_shard.setdefault(runtime.keys.shard(record.key), []).append(record)
    return by_shard


async def _copied(runtime: Runtime, record: Record, shard: int, level: str, end: float) -> None:
    """Return once copies of a change are counted, and of all that its server had before."""
    write = Write(key=record.key, op="delete", expected=BLIND)
    commit = runtime.committer.new(
        [write], shard, durability=level, actor="", reason="", end=end, change_id=record.change_id
    )
    commit.lost_answer = RedisUnavailable("copies", detail=_UNCOUNTED)
    while not await runtime.committer.copied(commit):
        pass


def _position(record: Record) -> Position:
    return Position.parse(record.position) or NOWHERE
