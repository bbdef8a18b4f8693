"""Going back: a new commit with an older value, as it was stored; history itself never goes back.

What is restored is decided on the state as it was read, and the commit compares that; where somebody was quicker, all
of it is decided again. A rollback to a version means the same whatever is there by then: where somebody is quicker each
time, it takes whatever is there.

A value comes back with its encoding and its schema, whatever the view's type is now. It lasts as long as the namespace
says from now on, or until the end that it had; one whose end has come since is not restored without a ttl. Where the
namespace says how long, what was replaced before its end has not ended: it would have been prolonged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from statecache.commit_protocol.answers import Absent
from statecache.core.history.reader import Point
from statecache.core.history.repeats import Asked, made_before
from statecache.core.history.targets import target_of, version_of
from statecache.core.history.terms import Terms, again, applied_before, committed
from statecache.core.view import expected_of
from statecache.errors import NotFound, UsageError, VersionConflict
from statecache.expiry import form_of, lasting, until_of
from statecache.history_errors import AlreadyCurrent, VersionNotFound
from statecache.model import ABSENT, BLIND, PRESENT, Write
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA, written_again
from statecache.rules.provenance import Provenance
from statecache.rules.undoing import Question, Search, redo_target, undo_target
from statecache.rules.versions import at_moment

if TYPE_CHECKING:
    from datetime import datetime

    from statecache.commit_protocol.answers import Found
    from statecache.core.history.targets import Aim
    from statecache.core.view import View
    from statecache.model import Expected, Record, State, Ttl
    from statecache.rules.versions import Version

_TRIES = 3
"""How often a rollback is decided anew because somebody was quicker, until it takes whatever is there."""
Walk = Literal["undo", "redo"]
NOWHERE_TO: dict[Walk, str] = {
    "undo": "what is there is what the first change made", "redo": "no undo came behind the last edit",
}  # fmt: skip
"""Why there is nothing to be undone or redone."""


class Decision(NamedTuple):
    """What is restored, and how the commit says so; `as_it_is` where that depends on the state that was read."""

    version: Version
    why: Provenance
    as_it_is: bool = True


Decide = Callable[["Record"], Awaitable[Decision]]
"""What decides on a state as it was read."""


async def restore(
    view: View[Any], key: str, decide: Decide, asked: Asked, terms: Terms, *, expected: Expected = ...,
    ttl: Ttl | None = None,
) -> State[Any]:  # fmt: skip
    """Commit what was decided, and return the new state, a tombstone where that is a delete."""
    wanted, tried = expected_of(key, expected), 0
    while True:
        record = await view.runtime.reader.record(key, end=terms.end)
        if (found := await applied_before(view, key, terms)) is not None:
            return await applied_again(view, await made_before(view, key, found, asked, terms), found, terms)
        _refuse_another_state(key, wanted, record)
        try:
            decision = await decide(record)
            write = await _write(view, decision, record, ttl, terms.end)
            if not decision.as_it_is and tried >= _TRIES and wanted == BLIND:
                write = _taking_whatever_is_there(write)
            _, done = await committed(view, [write], terms, str(decision.why))
            return view.committed_state(write, done, 0)
        except Absent:
            raise _already(decision) from None
        except VersionConflict as error:
            if wanted != BLIND:
                raise
            await again(view, terms, error)
            tried += 1


def _refuse_another_state(key: str, wanted: str, record: Record) -> None:
    """Raise VersionConflict where the state is not the one that the caller expects."""
    fits = wanted == BLIND or (not record.exists if wanted == ABSENT else record.exists and record.change_id == wanted)
    if not fits:
        expected = None if wanted == ABSENT else wanted
        raise VersionConflict(key, expected, record.change_id if record.exists else None)


async def _write(view: View[Any], decision: Decision, record: Record, ttl: Ttl | None, end: float) -> Write:
    """Return the write of what was decided; raise AlreadyCurrent for a rollback that would change nothing."""
    version, key = decision.version, decision.version.key
    if version.op != "set":
        if not record.exists and record.op != "quarantined":
            raise _already(decision)
        return Write(key=key, op="delete", expected=record.tip, ttl_ms=view.ttl_ms)
    stored = await view.runtime.history.value_of(version, end=end)
    value = written_again(stored, version.position) if version.schema == CHECKPOINT_SCHEMA else stored
    same = is_same(view, version, value, record) or is_same(view, version, stored, record)
    if not decision.as_it_is and ttl is None and same:
        raise _already(decision)
    if ttl is None:
        await refuse_ended(view, version, end)
    return write_of(view, version, value, record.tip, ttl=ttl)


def _already(decision: Decision) -> AlreadyCurrent:
    return AlreadyCurrent(decision.version.key, wanted=f"version {decision.version.version}")


def is_same(view: View[Any], version: Version, value: bytes, record: Record) -> bool:
    """Return whether a state is what a version was: bytes, schema, how they are encoded and how long they last."""
    ends = view.lasts_ms is not None or record.encoding == version.encoding
    forms = form_of(record.encoding) == form_of(version.encoding)
    return record.exists and (record.value, record.schema) == (value, version.schema) and ends and forms


def write_of(
    view: View[Any], version: Version, value: bytes, expected: str, *, key: str = "", ttl: Ttl | None = None
) -> Write:
    """Return the write of a version's value as it was stored, to its own key or another; raise CodecError."""
    key, encoding = key or version.key, version.encoding
    if ttl is not None or view.lasts_ms is not None:
        encoding = lasting(form_of(encoding), view.lasting_ms(ttl))
    seen = view.codec.decode(value, key=version.key, encoding=version.encoding, schema=version.schema)
    return Write(
        key=key, op="set", expected=expected, value=value, encoding=encoding, schema=version.schema, seen=seen,
        ttl_ms=view.ttl_ms,
    )  # fmt: skip


def has_ended(view: View[Any], version: Version) -> bool:
    """Return whether the end has come that a version was to have."""
    until = until_of(version.encoding)
    return until is not None and until <= view.runtime.redis.clock.now_ms()


async def is_over(view: View[Any], version: Version, end: float, *, now: Version | None = None) -> bool:
    """Return whether what a version held has ended since; `now` is the newest change of its key, where it is known."""
    if not has_ended(view, version):
        return False
    if view.lasts_ms is None or (now is not None and now.version == version.version):
        return True
    following = now
    if following is None or following.version != version.version + 1:
        try:
            point = Point(version=version.version + 1)
            following = await view.runtime.history.version_at(version.key, point, end=end)
        except VersionNotFound:
            return True
    return at_moment(version, following.at).op != "set"


async def refuse_ended(view: View[Any], version: Version, end: float) -> None:
    """Raise UsageError for a version of which what it held has ended since."""
    if await is_over(view, version, end):
        hint = "Say ttl=, which is how long it lasts from now on; math.inf is for ever."
        raise UsageError(f"what {version.key!r} held at version {version.version} has ended since", hint=hint)


def _taking_whatever_is_there(write: Write) -> Write:
    return Write(
        key=write.key, op=write.op, expected=BLIND if write.op == "set" else PRESENT, value=write.value,
        encoding=write.encoding, schema=write.schema, seen=write.seen, ttl_ms=write.ttl_ms,
    )  # fmt: skip


async def applied_again(view: View[Any], version: Version, found: Found, terms: Terms) -> State[Any]:
    """Send a commit again that is known to be applied, at the durability that is asked for now; return its state.

    Nothing is written twice.
    """
    value, seen = b"", None
    if version.op == "set":
        value = await view.runtime.history.value_of(version, end=terms.end)
        seen = view.codec.decode(value, key=version.key, encoding=version.encoding, schema=version.schema)
    write = Write(
        key=version.key, op="set" if version.op == "set" else "delete", expected=found.parents[0] or ABSENT,
        value=value, encoding=version.encoding, schema=version.schema, seen=seen, ttl_ms=view.ttl_ms,
    )  # fmt: skip
    _, done = await committed(view, [write], terms, version.reason)
    return view.committed_state(write, done, 0)


def to_target(view: View[Any], key: str, to: Aim, at: datetime | None, terms: Terms) -> Decide:
    """Return what decides on a version, whatever the state is: it is looked for once, behind an open gate."""
    found: list[Version] = []

    async def decide(_: Record) -> Decision:
        if not found:
            target = await target_of(view, key, to, at, whole=False, end=terms.end)
            found.append(await version_of(view, key, target, end=terms.end))
        why = Provenance(kind="rollback", version=found[0].version, reason=terms.reason)
        return Decision(found[0], why, as_it_is=False)

    return decide


def walking(view: View[Any], key: str, kind: Walk, terms: Terms) -> Decide:
    """Return what decides on an `undo` or a `redo`.

    Where what is there has ended, to delete it would change nothing: that goes further, as in a group.
    """

    async def decide(record: Record) -> Decision:
        view.refuse_quarantined(record)
        if record.version == 0:
            raise NotFound(key, hint="There is no change of it.")
        places, passed = _Places(view, record, terms.end), list[int]()
        while True:
            if kind == "undo":
                led = await places.led(undo_target(passed[-1] if passed else record.version))
            else:
                led = await places.led(redo_target(record.version, passed=len(passed)))
            if led is None:
                raise VersionNotFound(key, wanted=f"version to {kind} to", reason=NOWHERE_TO[kind])
            version = await places.at(led)
            if version.op == "set" or record.exists:
                return Decision(version, Provenance(kind=kind, version=led, reason=terms.reason))
            passed.append(led)

    return decide


async def newest(view: View[Any], record: Record, end: float) -> Version:
    """Return the change that made a state, which may have been set aside since."""
    runtime, key = view.runtime, record.key
    try:
        version = await runtime.history.version_at(key, Point(version=record.version), end=end)
    except VersionNotFound:
        await runtime.durable.lookup(runtime.keys.shard(key), record.change_id, [key], end=end)  # says why
        raise
    if version.change_id != record.change_id:
        raise VersionConflict(key, record.change_id, version.change_id)
    return version


class _Places:
    """The versions of a key up to the one that is there, as far as a search asks for them."""

    def __init__(self, view: View[Any], record: Record, end: float) -> None:
        self._view, self._record, self._end = view, record, end
        self._known: dict[int, Version] = {}

    async def at(self, place: int) -> Version:
        """Return a version; raise VersionNotFound."""
        if place not in self._known:
            if place == self._record.version:
                self._known[place] = await newest(self._view, self._record, self._end)
            else:
                history, point = self._view.runtime.history, Point(version=place)
                self._known[place] = await history.version_at(self._record.key, point, end=self._end)
        return self._known[place]

    async def led(self, search: Search) -> int | None:
        """Return where a search leads."""
        question: Question = next(search)
        try:
            while True:
                if question.what == "before":
                    question = search.send(question.place - 1 or None)
                else:
                    question = search.send((await self.at(question.place)).reason)
        except StopIteration as done:
            led: int | None = done.value
            return led
