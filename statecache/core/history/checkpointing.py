"""Making, renaming and deleting checkpoints, each by one commit.

    make      creates the record, and compares the state that it names: what it says is true at its position. At the
              level `postgres` it is then known, too, that the change which it names is in the chain: where that was set
              aside as a conflict, the checkpoint is taken back and the error says why. At a lesser level nobody has
              waited for that, and whoever goes back to the checkpoint compares the change_id
    rename    deletes the one record and creates the other, which keeps the position of the first
    delete    deletes the record

A state that changes between reading it and the commit is read again. Where somebody is quicker each time, the record is
created without looking at the state: it names whatever is current at its own position, as that of a group does. Which
version that is, is read from history then, and filled in by a second commit.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.clock import monotonic
from statecache.core.commit.durable import NOWHERE
from statecache.core.commit.proofs import stands
from statecache.core.history.checkpoints import checkpoint_of, stored_in
from statecache.core.history.made_by import made_by
from statecache.core.history.reader import Point
from statecache.core.history.terms import Terms, again, applied_before, committed
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.read.listed import Listed
from statecache.errors import (
    AlreadyExists,
    ChangeIdReused,
    NotFound,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from statecache.history_errors import CheckpointExists, CheckpointNotFound
from statecache.keys import checked_key
from statecache.model import ABSENT, Position, Write
from statecache.records import time_of
from statecache.rules.checkpoints import (
    CHECKPOINT_SCHEMA,
    CheckpointRecord,
    automatic_label,
    checked_label,
    encoded,
    record_key,
)
from statecache.rules.filters import Filter, Selection
from statecache.settings import writer_of

if TYPE_CHECKING:
    from statecache.checkpoints import Checkpoint, Scope
    from statecache.commit_protocol.answers import Committed
    from statecache.core.view import View
    from statecache.model import Record
    from statecache.rules.versions import Version

_RANDOM = SystemRandom()
_TRIES = 3
"""How often a state is read that somebody changes each time, until whatever is there is named."""
_LEAVE_S = 2.0
"""How long it may take to take a checkpoint back."""
_NOTHING = "There is nothing to make a checkpoint of."


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is to be: `label` is None for a name that is made up.

    With a `version`, which a commit at `position` has made, it is of that, whatever is there by now.
    """

    key: str
    scope: Scope
    label: str | None
    metadata: Any = None
    automatic: bool = False
    why: str = ""
    version: int | None = None
    position: Position | None = None


async def make(view: View[Any], wanted: Wanted, terms: Terms) -> Checkpoint:
    """Make a checkpoint and return it; raise NotFound, CheckpointExists, and what a commit raises."""
    label, tried = wanted.label, 0
    while True:
        if wanted.label is None:
            label = automatic_label(_now(view), f"{_RANDOM.getrandbits(24):06x}", why=wanted.why)
        target = checked_key(record_key(wanted.key, checked_label(label)))
        record = await _named(view, wanted, terms)
        if (
            _is_past(view, wanted, record)
            and (past := await _past(view, wanted, str(label), record, terms)) is not None
        ):
            return await _made_of_past(view, wanted, target, past, terms)
        if (found := await applied_before(view, target, terms)) is not None:
            return await _made_before(view, target, terms, found.versions[0])
        named = record if tried < _TRIES else None
        said = _said(view, wanted, str(label), named)
        compared = [] if named is None else [Write(key=named.key, op="check", expected=named.change_id)]
        try:
            _, done = await committed(view, [*compared, _write(view, target, said, ABSENT)], terms, terms.reason)
        except VersionConflict as error:
            if error.key == target and wanted.label is not None:
                raise await _exists(view, wanted.key, str(label), target, terms.end) from None
            await again(view, terms, error)
            tried += error.key != target
            continue
        said = msgspec.structs.replace(said, created_at=time_of(done.updated_at))
        if record is not None and named is None:
            return await _filled_in(view, target, said, done, terms)
        if named is not None and terms.durability == "postgres":
            await _prove(view, named, target, done.change_id, terms)
        return said.shown(done.position)


def _is_past(view: View[Any], wanted: Wanted, record: Record | None) -> bool:
    """Return whether a checkpoint is to name what is not current, as far as is known.

    Where the latest values alone are kept it never does: what a version held may be gone before it is named.
    """
    if wanted.version is None or (view.retention is not None and view.retention.history == "latest"):
        return False
    return record is None or record.version != wanted.version


async def _past(
    view: View[Any], wanted: Wanted, label: str, record: Record | None, terms: Terms
) -> CheckpointRecord | None:
    """Return what a checkpoint says of a version, or of a group as it was then; None where a value of it is gone."""
    said = msgspec.structs.replace(_said(view, wanted, label, None), point=str(wanted.position))
    if record is None:
        return said if await _is_kept(view, wanted, terms.end) else None
    version = await view.runtime.history.version_at(wanted.key, Point(version=int(wanted.version or 0)), end=terms.end)
    if not version.kept:
        if not record.exists:
            raise NotFound(wanted.key, hint=_NOTHING)
        return None
    return msgspec.structs.replace(
        said, version=version.version, change_id=version.change_id, schema=version.schema,
        sha256=(version.digest or b"").hex(),
    )  # fmt: skip


async def _is_kept(view: View[Any], wanted: Wanted, end: float) -> bool:
    """Return whether all values of a group at a position are kept; one that nothing is let go of is not looked at."""
    if view.retention is None or not view.retention.bounded or wanted.position is None:
        return True
    point = Point.at(wanted.position)
    found = await view.runtime.history.keys_at(wanted.key, point, as_bound=True, end=end)
    return all(one.kept or one.schema in OWN_SCHEMAS for one in found)


async def _made_of_past(
    view: View[Any], wanted: Wanted, target: str, said: CheckpointRecord, terms: Terms
) -> Checkpoint:
    """Make a checkpoint of what is no longer current, and return it."""
    try:
        _, done = await committed(view, [_write(view, target, said, ABSENT)], terms, terms.reason)
    except VersionConflict:
        raise await _exists(view, wanted.key, said.label, target, terms.end) from None
    return said.shown(done.position)


def _write(view: View[Any], target: str, said: CheckpointRecord, expected: str) -> Write:
    return Write(
        key=target, op="set", expected=expected, value=encoded(said), schema=CHECKPOINT_SCHEMA, ttl_ms=view.ttl_ms
    )


async def _filled_in(view: View[Any], target: str, said: CheckpointRecord, done: Committed, terms: Terms) -> Checkpoint:
    """Fill in which version is current at a checkpoint's position, and return the checkpoint."""
    version = await view.runtime.history.version_at(said.key, Point.at(done.position), end=terms.end)
    if version.op != "set":
        await _take_back(view, target, done.change_id)
        raise NotFound(said.key, hint=_NOTHING)
    said = msgspec.structs.replace(
        said, version=version.version, change_id=version.change_id, schema=version.schema,
        sha256=(version.digest or b"").hex(), point=str(done.position),
    )  # fmt: skip
    fill_in = _write(view, target, said, done.change_id)
    _, filled = await committed(view, [fill_in], terms._replace(change_id=None), terms.reason)
    if terms.durability == "postgres":
        await _prove(view, version, target, filled.change_id, terms)
    return said.shown(done.position)


def _now(view: View[Any]) -> datetime:
    return datetime.fromtimestamp(view.runtime.redis.clock.now_ms() / 1000, UTC)


async def _named(view: View[Any], wanted: Wanted, terms: Terms) -> Record | None:
    """Return the state that a checkpoint names; None for a group, which has to have one. Raise NotFound."""
    runtime = view.runtime
    if wanted.scope == "key":
        record = await runtime.reader.record(wanted.key, end=terms.end)
        view.refuse_quarantined(record)
        if record.schema == CHECKPOINT_SCHEMA:
            raise UsageError(f"{wanted.key!r} is a checkpoint itself")
        if not record.exists and not _is_past(view, wanted, record):
            raise NotFound(wanted.key, hint=_NOTHING)
        return record
    if (await runtime.reader.record(wanted.key, end=terms.end)).exists:
        return None
    selection = Selection(prefix=wanted.key + "/", filter=Filter(without=OWN_SCHEMAS))
    seconds = max(terms.end - monotonic(), 0.001)
    async for _ in runtime.listing.records(Listed(selection=selection, limit=1, values=False), seconds=seconds):
        return None
    raise NotFound(wanted.key, hint=_NOTHING)


def _said(view: View[Any], wanted: Wanted, label: str, record: Record | None) -> CheckpointRecord:
    settings = view.runtime.settings
    said = CheckpointRecord(
        label=label, scope=wanted.scope, key=wanted.key, made_by=made_by(settings), created_at=_now(view),
        writer=writer_of(settings), metadata=wanted.metadata, automatic=wanted.automatic,
    )  # fmt: skip
    if record is None:
        return said
    return msgspec.structs.replace(
        said, version=record.version, change_id=record.change_id, schema=record.schema,
        sha256=sha256(record.value).hexdigest(),
    )  # fmt: skip


async def _exists(view: View[Any], key: str, label: str, target: str, end: float) -> StateCacheError:
    """Return the error for a label that is in use."""
    record = await view.runtime.reader.primary(target, end=end)
    found = checkpoint_of(record)
    return AlreadyExists(target) if found is None else CheckpointExists(key, label=label, position=str(found.position))


async def _made_before(view: View[Any], target: str, terms: Terms, version: int) -> Checkpoint:
    """Return the checkpoint that an earlier call with the same change_id has made."""
    record = await view.runtime.reader.primary(target, end=terms.end)
    found = checkpoint_of(record)
    if found is None or terms.change_id not in (record.change_id, record.parent_change_id):
        raise ChangeIdReused(target, str(terms.change_id), version=version)
    if terms.durability == "postgres":
        await stands(view, target, record.change_id, Position.parse(record.position), terms.end)
    return found


async def _prove(view: View[Any], named: Record | Version, target: str, change_id: str, terms: Terms) -> None:
    """Return once the change that a checkpoint names is known to be in its chain; take it back where it is not."""
    position = named.position if isinstance(named.position, Position) else Position.parse(named.position)
    try:
        await stands(view, named.key, named.change_id, position, terms.end)
    except StateCacheError:
        await _take_back(view, target, change_id)
        raise


async def _take_back(view: View[Any], target: str, change_id: str) -> None:
    """Delete a checkpoint that names nothing, if that can be done now."""
    with suppress(StateCacheError):
        terms = Terms.of(view, durability="memory", actor="", reason="what it names is gone", timeout=_LEAVE_S)
        write = Write(key=target, op="delete", expected=change_id, ttl_ms=view.ttl_ms)
        await committed(view, [write], terms, terms.reason)


async def rename(view: View[Any], key: str, label: str, to: str, terms: Terms) -> Checkpoint:
    """Give a checkpoint another label and return it; raise CheckpointNotFound or CheckpointExists."""
    source, target = (checked_key(record_key(key, checked_label(one))) for one in (label, to))
    if source == target:
        raise UsageError(f"{label!r} is its label already")
    while True:
        record, said = await _stored(view, key, label, source, terms.end)
        position = Position.parse(record.position) or NOWHERE
        said = msgspec.structs.replace(said, label=to, point=said.point or str(position))
        gone = Write(key=source, op="delete", expected=record.change_id, ttl_ms=view.ttl_ms)
        writes = [gone, _write(view, target, said, ABSENT)]
        try:
            await committed(view, writes, terms, terms.reason)
        except VersionConflict as error:
            if error.key == target:
                raise await _exists(view, key, to, target, terms.end) from None
            await again(view, terms, error)
        else:
            return said.shown(position)


async def delete(view: View[Any], key: str, label: str, terms: Terms) -> Checkpoint:
    """Delete a checkpoint and return what it was, no longer pinned; raise CheckpointNotFound."""
    source = checked_key(record_key(key, checked_label(label)))
    while True:
        record, said = await _stored(view, key, label, source, terms.end)
        write = Write(key=source, op="delete", expected=record.change_id, ttl_ms=view.ttl_ms)
        try:
            await committed(view, [write], terms, terms.reason)
        except VersionConflict as error:
            await again(view, terms, error)
        else:
            return said.shown(Position.parse(record.position) or NOWHERE, pinned=False)


async def _stored(view: View[Any], key: str, label: str, place: str, end: float) -> tuple[Record, CheckpointRecord]:
    record = await view.runtime.reader.record(place, end=end)
    said = stored_in(record)
    if said is None:
        raise CheckpointNotFound(key, label=label)
    return record, said
