# Generated from statecache/_async/history.py by tests/generators/unasync.py. Do not edit.

"""The verbs that read history: which changes a key went through, and what it, or its group, held at a point."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from statecache.changes import Change
from statecache.checkpoints import Checkpoint
from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.concurrency import iterated, run
from statecache.core.arguments import checked_moment, checked_position, refuse_no_limit
from statecache.core.history.diffs import diff
from statecache.core.history.reader import VERSION_MAX, Point
from statecache.core.history.targets import Target, checked_aim, group_at, point_of_version, target_of
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.view import VerbGroup
from statecache.errors import UsageError
from statecache.expiry import expires_at
from statecache.history_errors import VersionNotFound
from statecache.keys import checked_group, checked_key
from statecache.model import Position, State
from statecache.rules.difference import Difference
from statecache.rules.versions import Version

D = TypeVar("D")
V = TypeVar("V")
Bound = int | datetime | None
Instant = int | str | datetime | Position | Checkpoint | State[Any] | Change[Any] | None
_ONE_OF = "one of version=, checkpoint=, position= and time= says which point is meant"


class History(VerbGroup[D], Generic[D]):
    """The verbs that read history."""

    @overload
    def history(
        self, name: str, *, since: Bound = ..., until: Bound = ..., limit: int | None = ..., reverse: bool = ...,
        values: bool = ..., unflushed: bool = ..., timeout: float | None = ...,
    ) -> Iterator[Change[D]]: ...  # fmt: skip
    @overload
    def history(
        self, name: str, *, type: type[V], since: Bound = ..., until: Bound = ..., limit: int | None = ...,
        reverse: bool = ..., values: bool = ..., unflushed: bool = ..., timeout: float | None = ...,
    ) -> Iterator[Change[V]]: ...  # fmt: skip
    @overload
    def history(
        self, name: str, *, type: object, since: Bound = ..., until: Bound = ..., limit: int | None = ...,
        reverse: bool = ..., values: bool = ..., unflushed: bool = ..., timeout: float | None = ...,
    ) -> Iterator[Change[Any]]: ...  # fmt: skip
    def history(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002
        since: Bound = None,
        until: Bound = None,
        limit: int | None = None,
        reverse: bool = False,
        values: bool = False,
        unflushed: bool = True,
        timeout: float | None = None,
    ) -> Iterator[Change[Any]]:
        """Yield the changes of a key, the oldest first, or with `reverse` the newest.

        `since` and `until` are versions or times, both included. With `values` each change brings its value, decoded;
        without, `value` is None. `kept` says whether the history still has it. What Postgres does not hold yet comes
        too, marked as not `durable`; `unflushed=False` leaves it out. `timeout` bounds each page, in seconds. Raises
        HistoryIncomplete where what is not flushed cannot be known, behind all that is; HistoryDamaged, behind what
        comes before it, for a change that does not fit its hash, and where a value cannot be read from what is kept, or
        is not what its digest says (without `values` none is read, so none is compared); CodecError;
        PostgresUnavailable.
        """
        view, key = self._view, checked_key(self._view.full(name))
        refuse_no_limit(limit)
        first = run(self._first(key, since, timeout))
        last = run(self._last(key, until, timeout))
        codec = view.codec if type is None else codec_for(type, view.policy.encoding)
        left = VERSION_MAX if limit is None else limit
        seconds = view.end_of(timeout) - monotonic()
        pages = self._runtime.history.versions(
            key, first=first, last=last, reverse=reverse, unflushed=unflushed, seconds=seconds
        )
        for page in iterated(pages):
            some = page[:left]
            left -= len(some)
            if not values:
                for one in some:
                    yield self._change(one, None, kept=one.kept)
            else:
                at = 0
                for data in iterated(self._runtime.history.values_between(some, end=view.end_of(timeout))):
                    for one, value in zip(some[at : at + len(data)], data, strict=True):
                        decoded = None
                        if value is not None and one.op == "set":
                            decoded = codec.decode(value, key=key, encoding=one.encoding, schema=one.schema)
                        yield self._change(one, decoded, kept=value is not None)
                    at += len(data)
            if not left:
                return

    def _first(self, key: str, since: Bound, timeout: float | None) -> int:
        """Return the version at which a bound begins."""
        if since is None or isinstance(since, int):
            return max(since or 1, 1)
        begin = checked_moment(since, "since")
        point = Point(time=begin)
        try:
            found = run(self._runtime.history.version_at(key, point, as_bound=True, end=self._view.end_of(timeout)))
        except VersionNotFound:
            return 1
        return found.version + (found.at < begin)

    def _last(self, key: str, until: Bound, timeout: float | None) -> int:
        """Return the version at which a bound ends."""
        if until is None or isinstance(until, int):
            return VERSION_MAX if until is None else until
        point = Point(time=checked_moment(until, "until"))
        try:
            found = run(self._runtime.history.version_at(key, point, as_bound=True, end=self._view.end_of(timeout)))
        except VersionNotFound:
            return 0
        return found.version

    def _change(self, one: Version, value: Any, *, kept: bool) -> Change[Any]:
        return Change(
            key=one.key, op=one.op, value=value, version=one.version, epoch=one.epoch, change_id=one.change_id,
            parent_change_id=one.parent_change_id, position=one.position, shard=self._runtime.keys.shard(one.key),
            at=one.at, writer=one.writer, actor=one.actor, reason=one.reason, schema=one.schema,
            expires_at=expires_at(one.encoding), size=one.size, sha256=(one.digest or b"").hex(), durable=one.durable,
            kept=kept,
        )  # fmt: skip

    @overload
    def get_at(
        self, name: str, *, version: int | None = ..., checkpoint: Checkpoint | str | None = ...,
        position: Position | None = ..., time: datetime | None = ..., timeout: float | None = ...,
    ) -> State[D] | None: ...  # fmt: skip
    @overload
    def get_at(
        self, name: str, *, type: type[V], version: int | None = ..., checkpoint: Checkpoint | str | None = ...,
        position: Position | None = ..., time: datetime | None = ..., timeout: float | None = ...,
    ) -> State[V] | None: ...  # fmt: skip
    @overload
    def get_at(
        self, name: str, *, type: object, version: int | None = ..., checkpoint: Checkpoint | str | None = ...,
        position: Position | None = ..., time: datetime | None = ..., timeout: float | None = ...,
    ) -> State[Any] | None: ...  # fmt: skip
    def get_at(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002
        version: int | None = None,
        checkpoint: Checkpoint | str | None = None,
        position: Position | None = None,
        time: datetime | None = None,
        timeout: float | None = None,
    ) -> State[Any] | None:
        """Return a state as it was at a version, a checkpoint, a position of its shard, or a moment; None if deleted.

        A checkpoint is one of the key or its group, or the label of one of the key. A moment is compared with the clock
        of Redis at each commit; from its end on a state is gone there, be it deleted by then or not. Raises
        VersionNotFound, with the version next to it, where there was nothing yet, where the value is no longer kept,
        where versions are missing that may have been current then, and for a position that was lost or a point that is
        yet to come; CheckpointNotFound; HistoryIncomplete where what is not flushed cannot be known; HistoryDamaged,
        CodecError, PostgresUnavailable.
        """
        view, key = self._view, checked_key(self._view.full(name))
        end = view.end_of(timeout)
        target = run(self._target(key, version, checkpoint, position, time, whole=False, end=end))
        found, value = run(self._runtime.history.read_at(key, target.point, end=end))
        return self._state(found, value, type) if target.reached(found).op == "set" else None

    def get_group_at(
        self,
        group: str,
        *,
        type: Any = None,  # noqa: A002
        checkpoint: Checkpoint | str | None = None,
        position: Position | None = None,
        time: datetime | None = None,
        timeout: float | None = None,
    ) -> dict[str, State[Any]]:
        """Return the states of a group, by key, as they were at a checkpoint, a position of its shard, or a moment.

        A checkpoint of the group, or its label, and a position is one consistent point of all of them; a moment stands
        for the position of the newest change that is no later. Of a commit either all changes are there or none. In a
        typed view the records of steps and checkpoints are left out. Raises as `get_at` does, and InvalidKey for a name
        that is no group.
        """
        view, key = self._view, checked_group(self._view.full(group))
        end, history = view.end_of(timeout), self._runtime.history
        target = run(self._target(key, None, checkpoint, position, time, whole=True, end=end))
        versions = run(group_at(view, key, target.point, end=end))
        typed = (view.kind if type is None else type) is not Any
        live = [one for one in versions if one.op == "set" and not (typed and one.schema in OWN_SCHEMAS)]
        values = run(history.values_of(live, end=end))
        return {
            one.key: self._state(one, run(history.value_of(one, end=end)) if value is None else value, type)
            for one, value in zip(live, values, strict=True)
        }

    def _target(
        self,
        key: str,
        version: int | None,
        checkpoint: Checkpoint | str | None,
        position: Position | None,
        time: datetime | None,
        *,
        whole: bool,
        end: float,
    ) -> Target:
        """Return the one point that is given of a key, or with `whole` of a group."""
        if checkpoint is None:
            return Target(_point(version, position, time))
        if (version, position, time) != (None, None, None):
            raise UsageError(_ONE_OF)
        if not isinstance(checkpoint, (Checkpoint, str)):
            raise UsageError(f"checkpoint={checkpoint!r} is no checkpoint", hint="Give a Checkpoint, or its label.")
        checked_aim(checkpoint, None, whole=whole)
        return run(target_of(self._view, key, checkpoint, None, whole=whole, end=end))

    def diff(self, name: str, a: Instant, b: Instant = None, *, timeout: float | None = None) -> tuple[Difference, ...]:
        """Return what differs between two points of a key's history, by paths: what was added, removed and changed.

        A point is a version, a checkpoint or its label, a moment, a `Position`, or a `State` or `Change` of the key;
        None is the newest. Values are compared as plain data; a deleted state has none. Raises as `get_at` does.
        """
        view, key = self._view, checked_key(self._view.full(name))
        end, history = view.end_of(timeout), self._runtime.history
        targets = [run(self._instant(key, which, end)) for which in (a, b)]
        found = [one.reached(run(history.version_at(key, one.point, end=end))) for one in targets]
        return run(diff(self._runtime, found, end=end))

    def _instant(self, key: str, which: Any, end: float) -> Target:
        """Return what is meant by what stands for a point."""
        if which is None:
            return Target(Point())
        if isinstance(which, (State, Change)):
            if which.key != key:
                raise UsageError(f"it is a state of {which.key!r}, not of {key!r}")
            return Target(Point(version=which.version), which.change_id)
        if isinstance(which, (Checkpoint, str)):
            return run(self._target(key, None, which, None, None, whole=False, end=end))
        if isinstance(which, Position):
            return Target(_point(None, which, None))
        return Target(_point(None, None, which) if isinstance(which, datetime) else _point(which, None, None))

    def _state(self, one: Version, value: bytes, type: Any) -> State[Any]:  # noqa: A002
        codec = self._view.codec if type is None else codec_for(type, self._view.policy.encoding)
        return State(
            key=one.key, value=codec.decode(value, key=one.key, encoding=one.encoding, schema=one.schema),
            epoch=one.epoch, version=one.version, change_id=one.change_id, parent_change_id=one.parent_change_id,
            position=one.position, updated_at=one.at, writer=one.writer, schema=one.schema,
            expires_at=expires_at(one.encoding),
        )  # fmt: skip


def _point(version: int | None, position: Position | None, time: datetime | None) -> Point:
    """Return the one point that is given."""
    if [version, position, time].count(None) != 2:
        raise UsageError(_ONE_OF)
    if version is not None:
        if isinstance(version, bool) or not isinstance(version, int):
            raise UsageError(f"version={version!r} is not a version")
        return point_of_version(version)
    checked = checked_position(position)
    return Point(time=checked_moment(time, "time")) if checked is None else Point.at(checked)
