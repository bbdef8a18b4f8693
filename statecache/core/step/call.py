"""One call of a step, from its claim to its end; `statecache.rules.steps` says what its record means.

    record ──▶ claim ──▶ intent, in Postgres before the function ──▶ function ──▶ result and state, one commit

What may go wrong, and what is left behind:

* before the intent is known to be in Postgres: the function is not called. An intent whose outcome is not known is
  withdrawn where that can be done at once; else it stands, and later reads as unknown.
* the function raises: `failed` or `unknown`, as `retry=` and `idempotent=` say; its exception goes on.
* the call is cancelled, or the result cannot be stored: `unknown`, with the reason.
* `apply` raises, or what it gives cannot be stored: `ran`; the next call applies the result without the function.
* someone else wrote the record meanwhile: nothing is overwritten. What they kept is given, or StepUnknown is raised.
* the lock under which the step was called is lost: `ran`, for the record is written without it.
* this process dies: the intent stands, and nobody but a person, `check=` or `idempotent=True` goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.backoff import Backoff, pause_s
from statecache.call_notes import note
from statecache.clock import monotonic, wall
from statecache.codec import codec_for
from statecache.core.commit.committer import new_change_id
from statecache.core.commit.durability_support import COPIED
from statecache.core.commit.durable import HELD, PART
from statecache.core.step.records import Held, held_step, record_write
from statecache.errors import (
    AlreadyExists,
    DurabilityNotMet,
    Forked,
    Lost,
    NotFound,
    OutcomeUnknown,
    Quarantined,
    StateCacheError,
    StepUnknown,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.keys import checked_key
from statecache.model import ABSENT, Encoding, Position, Record, Write
from statecache.rules import steps
from statecache.rules.steps import Done, NotDone, Retry, Step, StepRecord

if TYPE_CHECKING:
    from statecache.commit_protocol.commit import Commit
    from statecache.core.view import View
    from statecache.rules.leases import Locks

_LEAVE_S = 2.0
"""How long noting why a step was left may take, in seconds: its caller is gone, or waits for its error."""
_PAUSE_S_MAX = 0.25
_ANSWER_S = 0.25
"""The time that must be left for another look whether another agent has ended the step, in seconds."""
_APPLIED = (OutcomeUnknown, DurabilityNotMet, Forked, Quarantined, Lost)
"""Errors of a commit that was applied, or may have been."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a call except the function and its own; see the verb `step`."""

    type: Any
    apply: Callable[[Any, Any], Any] | None
    default: Any
    state_type: Any
    idempotent: bool
    check: Callable[[Step], Any] | None
    retry: Retry
    durability: str
    actor: str
    reason: str
    timeout: float | None


class StepCall:
    """One call of a step."""

    def __init__(
        self, view: View[Any], key: str, name: str, function: Callable[..., Any], args: tuple[Any, ...],
        terms: Terms,
    ) -> None:  # fmt: skip
        self._view = view
        self._runtime = view.runtime
        self._key = key
        self._name = name
        self._record_key = checked_key(steps.record_key(key, name))
        self._shard = view.runtime.keys.shard(key)
        self._function = function
        self._args = args
        self._terms = terms
        self._fingerprint = steps.fingerprint_of(args, key=self._record_key)
        self._results = codec_for(terms.type, view.encoding)
        self._before: Record | None = None
        self._committed: Commit | None = None
        self._claim = view.runtime.claims.of(self._record_key)
        self._new_in: int | None = None
        self._forks: set[str] = set()
        self._backoff = Backoff(0.005, min(_PAUSE_S_MAX, self._claim.pause_s_max))

    async def result(self) -> Any:
        """Return the step's result, from its function or from its record."""
        self._runtime.in_flight.refuse_if_closing()
        with self._runtime.in_flight.call():
            try:
                return await self._released()
            except BaseException as error:  # cancelled behind its commit: its caller learns nothing of that
                if self._committed is not None:
                    self._runtime.unknown_outcomes.note(self._committed, error)
                raise

    async def _released(self) -> Any:
        """Return the result once the claim is given back."""
        try:
            return await self._result()
        except GeneratorExit:  # who is thrown away cannot wait for an answer
            self._claim.drop()
            raise
        finally:
            await self._claim.give_back()

    async def _result(self) -> Any:
        end = self._view.end_of(self._terms.timeout)
        await self._runtime.committer.prepare("postgres", self._shard, end=end)
        while True:
            expected, held = await self._found(end)
            verdict = self._verdict(held)
            if verdict == "claim" and await self._claimed(held, end):
                continue
            if verdict in (None, "claim"):
                await self._wait(end)
            elif held is not None and verdict == "give":
                if await self._given(held, end):
                    return self._decoded(held)
                await self._runtime.redis.io.sleep(self._backoff.take())
            elif held is not None and verdict == "apply":
                return await self._end(held, bytes(held.step.result))
            else:
                done = await self._asked(held.step) if held is not None and verdict == "ask" else None
                if held is not None and done is not None:
                    again = msgspec.structs.replace(held, encoding=self._view.encoding)
                    return await self._end(again, self._encoded(done.result))
                if (begun := await self._begun(held, expected, end)) is not None:
                    return await self._run(begun)

    async def _found(self, end: float) -> tuple[str, Held | None]:
        """Return the record as it is; a step that is known to be new is not looked for."""
        if not self._forks:
            self._new_in = await self._runtime.step_index.new_in(self._key, self._record_key, end=end)
            if self._new_in is not None:
                return ABSENT, None
        return await held_step(self._runtime, self._record_key, end=end)

    def _verdict(self, held: Held | None) -> steps.Verdict | None:
        """Return what to do about the step as it was found; None where that cannot be told yet."""
        step = None if held is None else held.step
        if held is not None and held.change_id in self._forks:  # ours, refused, and about to be removed
            self._runtime.near.lowered(self._record_key, (0, 0))  # an older one stands behind it
            return None
        if step is not None:
            steps.check_fingerprint(step, self._fingerprint, key=self._key)
        claimed = self._claim.covers(step, "" if held is None else held.change_id)
        return steps.verdict_on(step, claimed=claimed, applies=self._terms.apply is not None)

    async def _claimed(self, held: Held | None, end: float) -> bool:
        """Return whether this call may continue the step."""
        step, change_id = (None, "") if held is None else (held.step, held.change_id)
        return await self._claim.take(step, change_id, end=end)

    async def _given(self, held: Held, end: float) -> bool:
        """Return whether the result to be returned is as durable as was asked for; False where it was lost."""
        level = self._terms.durability
        if level == "memory" or held.record is None:
            return True
        if level in COPIED:
            writes = [self._write(held.step, held.record.parent_change_id, held.encoding)]
            return await self._runtime.committer.copied(
                self._new(writes, level, end, locks=None, change_id=held.change_id)
            )
        position = Position.parse(held.record.position) or Position(0, 0)
        durable = self._runtime.durable
        keys = [self._record_key]
        ended = await durable.wait(self._shard, position, held.change_id, keys, end=end, ask="unless it is away")
        return ended in (HELD, PART)  # what the result was applied to may be gone with what came later

    async def _wait(self, end: float) -> None:
        """Pause, so that whoever runs the step can go on; raise where no time is left, or it has called itself."""
        if self._claim.is_callers:
            raise steps.calls_itself(self._name, key=self._key)
        if self._backoff.outlasts(end - _ANSWER_S):
            raise self._busy()
        note(retries=1)
        await self._runtime.redis.io.sleep(self._backoff.take())

    def _busy(self) -> Unavailable:
        if self._claim.is_anothers:
            return Unavailable("step", detail=f"another agent runs step {self._name!r} of {self._key!r}")
        detail = f"step {self._name!r} of {self._key!r} was begun, and whether its agent lives is not known yet"
        silent_s = self._runtime.settings.step_claim_s / 2
        hint = f"That takes {silent_s:g} seconds in which nobody takes the step's claim: give a longer timeout=."
        return Unavailable("step", detail=detail, hint=hint)

    async def _asked(self, step: StepRecord) -> Done[Any] | None:
        """Return the result of a step that was left, or None where it is to run again; raise StepUnknown."""
        found = None
        if self._terms.check is not None:
            found = await self._runtime.redis.io.called(self._terms.check(self._context(step)))
            if not (found is None or isinstance(found, (Done, NotDone))):
                raise UsageError("the function given as check= gave neither Done(result), NotDone() nor None")
        if isinstance(found, Done):
            return found
        if isinstance(found, NotDone) or self._terms.idempotent:
            return None
        raise self._unknown(step, steps.why_unknown(step))

    async def _begun(self, held: Held | None, expected: str, end: float) -> Held | None:
        """Write the intent, and return it when Postgres holds it; return None where somebody else wrote first."""
        if self._terms.apply is not None:  # what the result will be applied to may not exist: before there is an effect
            self._before = await self._runtime.reader.record(self._key, end=end)
            self._value_of(self._before)
        if self._view.automatic is not None:
            await self._view.automatic.before_step(self._view, self._key)
        before, encoding = None if held is None else held.step, self._view.encoding
        step = steps.intent(before, self._name, self._fingerprint, new_key=new_change_id(), at=wall())
        writes = [self._write(step, expected, encoding)]
        commit = self._new(writes, "postgres", end, locks=self._locks(writes))
        begun = Held(step, commit.change_id, encoding)
        try:
            await self._runtime.committer.commit(commit)
        except (VersionConflict, AlreadyExists):
            note(retries=1, conflicts=1)
            return None
        except Forked:
            self._forks.add(commit.change_id)
            return None
        except BaseException as error:  # cancelled, or not known to be durable: the function is not called
            if isinstance(error, _APPLIED) or not isinstance(error, Exception):
                await self._leave(error, begun, "failed", "it was left before its function was called")
            raise
        finally:
            self._runtime.step_index.add(self._key, self._record_key)
        return begun

    async def _run(self, begun: Held) -> Any:
        """Call the function, record how it ended, and return its result."""
        try:
            result = await self._effect(self._context(begun.step))
        except Exception as error:  # whatever the user's function raises is kept and goes on
            status = steps.status_after(error, idempotent=self._terms.idempotent, retry=self._terms.retry)
            await self._leave(error, begun, status, f"its function raised {steps.told(error)}")
            if status == "unknown":
                error.add_note(str(self._unknown(begun.step, f"its function raised {type(error).__name__}")))
            raise
        except BaseException as error:  # cancelled in the middle of it
            await self._leave(error, begun, "unknown", f"it was cut off by {type(error).__name__}")
            raise
        try:
            data = self._encoded(result)
        except StateCacheError as error:
            await self._leave(error, begun, "unknown", f"its function returned what cannot be stored: {error}")
            raise
        return await self._end(begun, data)

    async def _effect(self, step: Step) -> Any:
        tried, retry = 0, self._terms.retry
        while True:
            try:
                return await self._runtime.redis.io.called(self._function(step, *self._args))
            except retry.on:
                tried += 1
                if tried > retry.times:
                    raise
            await self._runtime.redis.io.sleep(pause_s(tried, retry.pause_s, steps.PAUSE_S_MAX))

    async def _end(self, held: Held, data: bytes) -> Any:
        """Commit the result, and what it makes of the value; return it as every later call will get it."""
        try:
            value = self._results.decode(data, key=self._record_key, encoding=held.encoding)
            await self._commit_result(held, value, data)
        except _Overtaken:
            return await self._overtaken(held.step)
        except _APPLIED as error:
            error.add_note(
                f"Call the step again: it gives the result of step {self._name!r}, or says that it is unknown."
            )
            raise
        except BaseException as error:  # the effect happened: its result is kept, whatever hinders the rest
            if not await self._leave(error, held, "ran", f"its result is not applied: {steps.told(error)}", data):
                error.add_note(str(self._unknown(held.step, "its function returned, but its result could not be kept")))
            raise
        return value

    async def _commit_result(self, held: Held, value: Any, data: bytes) -> None:
        """Commit the result with what `apply` makes of the value, again where the value was changed meanwhile."""
        end, backoff = self._view.end_of(self._terms.timeout), Backoff(0.001, 0.1)
        done = steps.ended(held.step, "done", at=wall(), result=data)
        while True:
            writes = [self._write(done, held.change_id, held.encoding)]
            if self._terms.apply is not None:
                writes.append(await self._applied(self._terms.apply, value, end))
            try:
                commit = self._new(writes, self._terms.durability, end, locks=self._locks(writes))
                committed = await self._runtime.committer.commit(commit)
                self._committed = commit
                await self._view.applied((commit, committed))
            except VersionConflict as conflict:
                if conflict.key == self._record_key:
                    raise _Overtaken from conflict
                if backoff.outlasts(end):
                    raise
            else:
                return
            note(retries=1, conflicts=1)
            self._before = None
            await self._runtime.redis.io.sleep(backoff.take())

    async def _applied(self, apply: Callable[[Any, Any], Any], result: Any, end: float) -> Write:
        """Return the write of what the result makes of the value."""
        before = self._before or await self._runtime.reader.record(self._key, end=end)
        value = await self._runtime.redis.io.called(apply(self._value_of(before), result))
        if value is None:
            raise UsageError("the function given as apply= returned None", hint="Return the new value.")
        return self._view.write_of(self._key, value, expected=before.tip, over=before, type=self._terms.state_type)

    async def _overtaken(self, step: StepRecord) -> Any:
        """Return the result that somebody else kept of the same effect; raise StepUnknown where nobody has."""
        end = self._view.end_of(self._terms.timeout)
        _, held = await held_step(self._runtime, self._record_key, end=end)
        found = None if held is None else held.step
        kept = steps.kept_by_another(found, step, idempotent=self._terms.idempotent)
        if held is not None and kept and await self._given(held, end):
            return self._decoded(held)
        status = "gone" if held is None else held.step.status
        raise self._unknown(step, f"its function returned, but others had taken the step over, which is now {status}")

    async def _leave(
        self, error: BaseException, held: Held, status: steps.Status, reason: str, data: bytes = b""
    ) -> bool:
        """Note why the step was left, and return whether that was done at once; if not, its intent stands."""
        if isinstance(error, GeneratorExit):  # who is thrown away cannot wait for an answer
            return False
        left = steps.ended(held.step, status, at=wall(), result=data, error=reason)
        return await self._runtime.redis.io.finished(self._note_left(self._write(left, held.change_id, held.encoding)))

    async def _note_left(self, write: Write) -> bool:
        """Write how the step was left; under no lock, for what happened stays true if the lock is lost."""
        locks = self._view.unguarded(write.key)
        with suppress(StateCacheError):
            await self._runtime.committer.commit(self._new([write], "memory", monotonic() + _LEAVE_S, locks=locks))
            return True
        return False

    def _locks(self, writes: list[Write]) -> Locks | None:
        return self._view.locks_of([write.key for write in writes])

    def _new(
        self, writes: list[Write], durability: str, end: float, *, locks: Locks | None, change_id: str | None = None
    ) -> Commit:
        return self._runtime.committer.new(
            writes, self._shard, durability=durability, actor=self._terms.actor, reason=self._terms.reason, end=end,
            change_id=change_id, locks=locks,
        )  # fmt: skip

    def _write(self, step: StepRecord, expected: str, encoding: Encoding) -> Write:
        return record_write(self._view, self._record_key, step, expected, encoding, new_in=self._new_in)

    def _encoded(self, result: Any) -> bytes:
        most, beside = self._view.value_bytes_max, steps.RECORD_BYTES
        return self._results.encode(result, key=self._record_key, bytes_max=most, beside=beside)[0]

    def _decoded(self, held: Held) -> Any:
        """Return the result that a record keeps."""
        return self._results.decode(bytes(held.step.result), key=self._record_key, encoding=held.encoding)

    def _value_of(self, record: Record) -> Any:
        """Return the value that the result is applied to; raise NotFound without one and without a default."""
        self._view.refuse_to_drop(record, self._terms.state_type)
        state = self._view.state_of(record, self._terms.state_type)
        if state is not None:
            return state.value
        default = self._terms.default
        if default is ...:
            raise NotFound(self._key)
        return self._view.made_default(self._key, default, self._terms.state_type)

    def _context(self, step: StepRecord) -> Step:
        return Step(key=self._key, name=self._name, idempotency_key=step.idempotency_key, attempt=step.attempts)

    def _unknown(self, step: StepRecord, reason: str) -> StepUnknown:
        return StepUnknown(self._key, self._name, idempotency_key=step.idempotency_key, reason=reason)


class _Overtaken(Exception):
    """The record was written by somebody else since."""
