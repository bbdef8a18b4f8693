"""Going back with a whole group: one commit of all its keys, so it is done, or it is not.

    now     the newest change of each key, read as of one moment: Postgres up to the watermark, the stream behind it
    then    the same at the position that is gone back to
    commit  what differs is written: created since, it is deleted; deleted since, it is created again. What is the same
            is compared, so that nobody has changed any of it meanwhile; where somebody has, all is read again. Where
            the time is up in the middle of that, the conflict is what it was spent on

Who creates further keys meanwhile, by a commit of nothing else, comes behind it all: there was nothing to go back.

Checkpoints stay as they are. So do the records of steps, unless they are asked for: what a step did outside of this is
not undone by forgetting it, and a step that is forgotten runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.core.history.reader import Point
from statecache.core.history.restoring import NOWHERE_TO, Walk, has_ended, is_over
from statecache.core.history.targets import position_of, target_of
from statecache.core.history.terms import Terms, again, committed
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.step.records import STEP_SCHEMA
from statecache.errors import LimitExceeded, Unavailable, VersionConflict
from statecache.expiry import PLAIN_MAX, form_of, lasting
from statecache.history_errors import AlreadyCurrent, HistoryIncomplete, VersionNotFound
from statecache.model import AGED, COMMIT_BYTES_MAX, STATE_OVERHEAD_BYTES, STATES_PER_COMMIT_MAX, Position, State, Write
from statecache.rules.provenance import Provenance
from statecache.rules.undoing import Question, is_expiry, redo_target, undo_target

if TYPE_CHECKING:
    from datetime import datetime

    from statecache.core.history.targets import Aim
    from statecache.core.view import View
    from statecache.rules.versions import Version


class GroupDecision(NamedTuple):
    """The position that is gone back to, and how the commit says so."""

    position: Position
    why: Provenance


_CUT_OFF_S = 0.25
"""How long before the end of its time a call that decides anew may be cut off by it, in seconds: its reads pause."""
_IN_PARTS = "A group is written in one commit. What that has no room for goes key by key, seen in part meanwhile."
GroupDecide = Callable[[Sequence["Version"], Sequence[Position]], Awaitable[GroupDecision]]
"""What decides on a group as it is now, on the newest changes of its keys, where at some positions nothing differs."""


class Pair(NamedTuple):
    """One key of a group: its newest change, and that of then, None where there was none yet."""

    now: Version
    then: Version | None


async def restore_group(
    view: View[Any], group: str, decide: GroupDecide, terms: Terms, *, steps: bool
) -> dict[str, State[Any]]:
    """Commit what differs from the position that was decided on, and return the states that were written, by key."""
    runtime, past = view.runtime, _Past(view, group, terms.end)
    met: VersionConflict | None = None
    unseen = False
    await runtime.reader.record(group, end=terms.end)  # behind a closed gate nothing newest is known
    while True:
        try:
            if unseen and met is not None:  # what history does not show may have been set aside
                await runtime.durable.lookup(runtime.keys.shard(group), str(met.actual), [met.key], end=terms.end)
            now = await runtime.history.keys_at(group, Point(), end=terms.end)
            decision, writes = await _decided(view, group, now, decide, past, steps=steps)
            refuse_too_many(group, writes)
            commit, done = await committed(view, writes, terms, str(decision.why))
        except VersionConflict as error:
            unseen = met is not None and (met.key, met.actual) == (error.key, error.actual)
            met = error
            await again(view, terms, error)
        except (Unavailable, HistoryIncomplete) as error:
            if met is None or monotonic() + _CUT_OFF_S < terms.end:
                raise
            raise met from error
        else:
            return {one.key: view.committed_state(one, done, at) for at, one in enumerate(commit.written())}


async def decided_group(
    view: View[Any], group: str, now: Sequence[Version], decide: GroupDecide, end: float, *, steps: bool
) -> GroupDecision:
    """Return where a group goes, as it is now; raise AlreadyCurrent or VersionNotFound where it goes nowhere."""
    decision, _ = await _decided(view, group, now, decide, _Past(view, group, end), steps=steps)
    return decision


async def _decided(
    view: View[Any], group: str, now: Sequence[Version], decide: GroupDecide, past: _Past, *, steps: bool
) -> tuple[GroupDecision, list[Write]]:
    """Return where a group goes, and what is written for it.

    An undo or a redo that would change nothing goes further: past commits that wrote what was there already, and past
    what has ended since.
    """
    passed: list[Position] = []
    while True:
        decision = await decide(now, passed)
        pairs = _pairs(now, await past.at(decision.position), steps=steps)
        if not any(one.then for one in pairs):
            wanted = f"change up to {decision.position}"
            raise VersionNotFound(group, wanted=wanted, reason="nothing of the group is that old")
        writes = await _writes(view, pairs, past)
        if any(write.op != "check" for write in writes):
            return decision, writes
        if decision.why.kind == "rollback":
            raise AlreadyCurrent(group, wanted=f"{decision.position}")
        passed.append(decision.position)


def _pairs(now: Sequence[Version], then: Sequence[Version], *, steps: bool) -> list[Pair]:
    """Return the keys of users, and those of steps if asked for."""
    passed = [schema for schema in OWN_SCHEMAS if schema != STEP_SCHEMA or not steps]
    before = {one.key: one for one in then}
    pairs = [Pair(one, before.get(one.key)) for one in now]
    return [
        one for one in pairs
        if one.now.schema not in passed and (one.then is None or one.then.schema not in passed)
    ]  # fmt: skip


class _Past:
    """What a group was, which does not change: whoever has to decide again has it already, and is quicker."""

    def __init__(self, view: View[Any], group: str, end: float) -> None:
        self._view = view
        self._group = group
        self.end = end
        self._versions: dict[Position, Sequence[Version]] = {}
        self._values: dict[tuple[str, int], bytes] = {}

    async def at(self, position: Position) -> Sequence[Version]:
        """Return the newest change of each key at a position."""
        if position not in self._versions:
            history = self._view.runtime.history
            self._versions[position] = await history.keys_at(self._group, Point.at(position), end=self.end)
        return self._versions[position]

    async def values(self, versions: Sequence[Version]) -> Mapping[tuple[str, int], bytes]:
        """Return the values of versions; raise VersionNotFound for one that is no longer kept."""
        lacking = [one for one in versions if (one.key, one.version) not in self._values]
        if lacking:
            refuse_too_large(versions)
            self._values |= await values_of(self._view, lacking, self.end)
        return self._values


async def _writes(view: View[Any], pairs: Sequence[Pair], past: _Past) -> list[Write]:
    writes: list[Write] = []
    changed: list[tuple[Pair, Version]] = []
    for pair in pairs:
        then = pair.then
        lives = pair.now.op == "set" and not has_ended(view, pair.now)
        if then is not None and then.op == "set" and not await is_over(view, then, past.end, now=pair.now):
            if lives and _same(pair.now, then):
                writes.append(Write(key=pair.now.key, op="check", expected=pair.now.change_id))
            else:
                changed.append((pair, then))
        elif lives:
            writes.append(Write(key=pair.now.key, op="delete", expected=_tip(pair.now), ttl_ms=view.ttl_ms))
    values = await past.values([then for _, then in changed])
    for pair, then in changed:
        writes.append(plain_write(view, then, values[then.key, then.version], _tip(pair.now)))
    return sorted(writes, key=lambda write: write.key)


def _tip(version: Version) -> str:
    """Return what a write expects that continues a change, be the end of what it wrote come or not."""
    return version.change_id if len(version.encoding) <= PLAIN_MAX else version.change_id + AGED


def _same(one: Version, other: Version) -> bool:
    """Return whether two changes of a key wrote the same."""
    if one.version == other.version:
        return True
    return one.digest is not None and (one.digest, one.encoding, one.schema) == (
        other.digest, other.encoding, other.schema,
    )  # fmt: skip


def plain_write(view: View[Any], version: Version, value: bytes, expected: str, *, key: str = "") -> Write:
    """Return the write of a version's value as it was stored; what it shows is plain data, whatever its type."""
    encoding = version.encoding
    if view.lasts_ms is not None:
        encoding = lasting(form_of(encoding), view.lasts_ms)
    seen = codec_for(Any).decode(value, key=version.key, encoding=version.encoding)
    return Write(
        key=key or version.key, op="set", expected=expected, value=value, encoding=encoding, schema=version.schema,
        seen=seen, ttl_ms=view.ttl_ms,
    )  # fmt: skip


async def values_of(view: View[Any], versions: Sequence[Version], end: float) -> dict[tuple[str, int], bytes]:
    """Return the values of versions by key and version; raise VersionNotFound for one that is no longer kept."""
    history = view.runtime.history
    read = await history.values_of(versions, end=end)
    return {
        (one.key, one.version): await history.value_of(one, end=end) if value is None else value
        for one, value in zip(versions, read, strict=True)
    }


def refuse_too_large(versions: Sequence[Version]) -> None:
    """Raise LimitExceeded before values are read that no commit can hold."""
    size = sum(one.size + len(one.key.encode()) + STATE_OVERHEAD_BYTES for one in versions)
    if size > COMMIT_BYTES_MAX:
        raise LimitExceeded(
            "the group's size in bytes", actual=size, limit=COMMIT_BYTES_MAX, key=versions[0].key,
            hint=_IN_PARTS,
        )  # fmt: skip


def refuse_too_many(group: str, writes: Sequence[Write]) -> None:
    """Raise LimitExceeded for more keys than one commit takes."""
    if len(writes) > STATES_PER_COMMIT_MAX:
        raise LimitExceeded(
            "the number of the group's keys", actual=len(writes), limit=STATES_PER_COMMIT_MAX, key=group,
            hint=_IN_PARTS,
        )  # fmt: skip


def to_group_target(view: View[Any], group: str, to: Aim, at: datetime | None, terms: Terms) -> GroupDecide:
    """Return what decides on a position, whatever the group is now: it is looked for once, behind an open gate."""
    found: list[Position] = []

    async def decide(_: Sequence[Version], __: Sequence[Position]) -> GroupDecision:
        if not found:
            target = await target_of(view, group, to, at, whole=True, end=terms.end)
            found.append(await position_of(view, group, target, end=terms.end))
        return GroupDecision(found[0], Provenance(kind="rollback", position=found[0], reason=terms.reason))

    return decide


def group_walking(view: View[Any], group: str, kind: Walk, terms: Terms) -> GroupDecide:
    """Return what decides on an `undo` or a `redo` of a group: from commit to commit of its users' keys."""

    commits = _Commits(view, group, terms.end)

    async def decide(now: Sequence[Version], passed: Sequence[Position]) -> GroupDecision:
        nonlocal commits
        if not passed:
            commits = _Commits(view, group, terms.end)
        tip = await commits.newest_of(now)
        if tip is None:
            raise VersionNotFound(group, wanted=f"commit to {kind} to", reason="there is none")
        if kind == "redo":
            search = redo_target(tip, whole=True, passed=len(passed))
        else:
            search = undo_target(passed[-1].n if passed else tip, whole=True)
        question: Question = next(search)
        try:
            while True:
                if question.what == "before":
                    question = search.send(await commits.before(question.place))
                else:
                    question = search.send((await commits.at(question.place)).reason)
        except StopIteration as done:
            if done.value is None:
                reason = NOWHERE_TO[kind]
                raise VersionNotFound(group, wanted=f"commit to {kind} to", reason=reason) from None
            led = (await commits.at(done.value)).position
        return GroupDecision(led, Provenance(kind=kind, position=led, reason=terms.reason))

    return decide


class _Commits:
    """The commits of a group in which something of a user changed, each by one of its changes."""

    def __init__(self, view: View[Any], group: str, end: float) -> None:
        self._history = view.runtime.history
        self._group = group
        self._end = end
        self._known: dict[int, Version] = {}

    async def newest_of(self, versions: Sequence[Version]) -> int | None:
        """Return the n of the commit that made the newest of these changes; None where there is none.

        That a worker deletes what has ended is no commit of a user: whether it was there by then makes no difference.
        """
        while (newest := await self._newest_of(versions)) is not None and is_expiry(newest.reason):
            point = Point(n=newest.position.n - 1)
            versions = await self._history.keys_at(self._group, point, end=self._end)
        if newest is None:
            return None
        self._known[newest.position.n] = newest
        return newest.position.n

    async def _newest_of(self, versions: Sequence[Version]) -> Version | None:
        """Return the newest of these changes that is of a user's key."""
        for one in sorted(versions, key=lambda one: one.position.n, reverse=True):
            if not await self._is_own(one):
                return one
        return None

    async def before(self, n: int) -> int | None:
        """Return the n of the commit before another; None where there is none."""
        return await self.newest_of(await self._history.keys_at(self._group, Point(n=n - 1), end=self._end))

    async def at(self, n: int) -> Version:
        """Return a change of the commit at n; raise VersionNotFound."""
        if n not in self._known and await self.before(n + 1) != n:
            reason = "no commit of the group stands there"
            raise VersionNotFound(self._group, wanted=f"commit at n {n}", reason=reason)
        return self._known[n]

    async def _is_own(self, one: Version) -> bool:
        """Return whether a change is of a step's record or a checkpoint; one that was deleted says so before that."""
        if one.op == "set" or one.version == 1:
            return one.schema in OWN_SCHEMAS
        before = await self._history.version_at(one.key, Point(version=one.version - 1), end=self._end)
        return before.schema in OWN_SCHEMAS
