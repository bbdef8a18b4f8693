"""Branches: a new key, or a whole new group, that begins with what another one held at some point.

The commit that creates it says in its reason where that is from, and holds the values as they were stored. So what
Redis and the stream hold is whole, whatever becomes of the origin; the worker finds the origin in Postgres and keeps a
reference to it in place of the bytes. For that the origin has to be there first: it is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statecache.clock import monotonic
from statecache.core.commit.proofs import stands
from statecache.core.history.reader import Point
from statecache.core.history.repeats import Asked, made_before
from statecache.core.history.restoring import applied_again, is_over, refuse_ended, write_of
from statecache.core.history.restoring_groups import plain_write, refuse_too_large, refuse_too_many, values_of
from statecache.core.history.targets import target_of, version_of
from statecache.core.history.terms import ASK_FIRST, Terms, applied_before, committed, plain_value
from statecache.core.own_records import refuse_branch_of_head, refuse_checkpoint
from statecache.core.read.listed import Listed
from statecache.errors import (
    AlreadyExists,
    Forked,
    NotFound,
    OutcomeUnknown,
    Quarantined,
    VersionConflict,
)
from statecache.history_errors import HistoryIncomplete, VersionNotFound
from statecache.model import ABSENT
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA
from statecache.rules.filters import Selection
from statecache.rules.provenance import Provenance

if TYPE_CHECKING:
    from statecache.core.history.targets import Aim
    from statecache.core.view import View
    from statecache.model import State, Ttl
    from statecache.rules.versions import Version

_IN_THE_WAY = "A branch begins where there is nothing: give it another name, or delete what is there."
_GROUP_IN_THE_WAY = f"{_IN_THE_WAY} {ASK_FIRST}"


async def branch(view: View[Any], key: str, new: str, at: Aim, terms: Terms, *, ttl: Ttl | None = None) -> State[Any]:
    """Create a key with what another one held at a point, or holds, and return its state; raise AlreadyExists."""
    runtime = view.runtime
    existing = await runtime.reader.record(new, end=terms.end)
    if (found := await applied_before(view, new, terms)) is not None:
        made = await made_before(view, new, found, Asked("branch", key, at), terms)
        return await applied_again(view, made, found, terms)
    if existing.exists:
        raise AlreadyExists(new, hint=_IN_THE_WAY)
    origin = await _origin(view, key, at, terms.end)
    if ttl is None:
        await refuse_ended(view, origin, terms.end)
    value = await runtime.history.value_of(origin, end=terms.end)
    write = write_of(view, origin, value, ABSENT, key=new, ttl=ttl)
    refuse_branch_of_head(key, plain_value(view, write))
    await durable_origin(view, origin, terms.end)
    why = Provenance(kind="branch", version=origin.version, origin=key, reason=terms.reason)
    try:
        _, done = await committed(view, [write], terms, str(why))
    except VersionConflict:
        raise AlreadyExists(new, hint=_IN_THE_WAY) from None
    return view.committed_state(write, done, 0)


async def _origin(view: View[Any], key: str, at: Aim, end: float) -> Version:
    """Return the version from which a branch is to begin; raise NotFound, or VersionNotFound for a delete."""
    record = await view.runtime.reader.record(key, end=end)
    if at is not None:
        target = await target_of(view, key, at, None, whole=False, end=end)
        version = await version_of(view, key, target, end=end)
    else:
        view.refuse_quarantined(record)
        if not record.exists:
            raise NotFound(key, hint="Say at=, to branch from what it was.")
        version = await view.runtime.history.version_at(key, Point(version=record.version), end=end)
    if version.op != "set":
        wanted, reason = f"value at version {version.version}", "it was deleted by that"
        raise VersionNotFound(key, wanted=wanted, reason=reason, nearest=version.version - 1 or None)
    refuse_checkpoint(key, version.schema)
    return version


async def durable_origin(view: View[Any], origin: Version, end: float) -> None:
    """Return once Postgres holds a version; raise Forked, Quarantined or Lost where it never will.

    Raises HistoryIncomplete where it does not in time.
    """
    if origin.durable:
        return
    view.runtime.support.check("postgres")
    await view.runtime.durable.watch(view.runtime.keys.shard(origin.key), end=end)
    try:
        await stands(view, origin.key, origin.change_id, origin.position, end)
    except OutcomeUnknown as error:
        reason = f"its version {origin.version} is not known to be in Postgres yet, from where others are made"
        raise HistoryIncomplete(origin.key, reason=reason) from error


async def branch_group(view: View[Any], group: str, new: str, at: Aim, terms: Terms) -> dict[str, State[Any]]:
    """Create a group with what all keys of another held at one position, in one commit; return its states by key."""
    runtime = view.runtime
    await _refuse_existing(view, new, terms.end)
    await runtime.reader.record(group, end=terms.end)  # behind a closed gate nothing newest is known
    target = Point() if at is None else (await target_of(view, group, at, None, whole=True, end=terms.end)).point
    versions = await _durable_keys(view, group, target, terms.end)
    if not versions and at is None:
        raise NotFound(group, hint="There is nothing to branch from.")
    if not versions:
        raise VersionNotFound(group, wanted=str(target), reason="nothing of the group is that old")
    position = max(one.position for one in versions)
    live = [
        one for one in versions
        if one.op == "set" and one.schema != CHECKPOINT_SCHEMA and not await is_over(view, one, terms.end)
    ]  # fmt: skip
    if not live:
        raise NotFound(group, hint="There is nothing to branch from.")
    refuse_too_large(live)
    values = await values_of(view, live, terms.end)
    writes = [
        plain_write(view, one, values[one.key, one.version], ABSENT, key=new + one.key.removeprefix(group))
        for one in live
    ]
    refuse_too_many(group, writes)
    why = Provenance(kind="branch", position=position, origin=group, reason=terms.reason)
    try:
        commit, done = await committed(view, writes, terms, str(why))
    except VersionConflict as error:
        raise AlreadyExists(error.key, hint=_GROUP_IN_THE_WAY) from None
    return {one.key: view.committed_state(one, done, at) for at, one in enumerate(commit.written())}


async def _durable_keys(view: View[Any], group: str, target: Point, end: float) -> Sequence[Version]:
    """Return the newest version of each key of a group at a point, once Postgres holds them all."""
    point = target
    while True:
        versions = await view.runtime.history.keys_at(group, point, end=end)
        waiting = [one for one in versions if not one.durable]
        if not waiting:
            return versions
        try:
            await durable_origin(view, max(waiting, key=lambda one: one.position.n), end)
        except (Forked, Quarantined):  # it was set aside: what was before it counts
            point = target
        else:
            point = Point(n=max(one.position.n for one in versions))


async def _refuse_existing(view: View[Any], new: str, end: float) -> None:
    """Raise AlreadyExists for a group of which there is a state."""
    if (await view.runtime.reader.record(new, end=end)).exists:
        raise AlreadyExists(new, hint=_GROUP_IN_THE_WAY)
    listed = Listed(selection=Selection(prefix=new + "/"), limit=1, values=False)
    async for record in view.runtime.listing.records(listed, seconds=max(end - monotonic(), 0.001)):
        raise AlreadyExists(record.key, hint=_GROUP_IN_THE_WAY)
