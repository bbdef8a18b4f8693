# Generated from statecache/_async/writes.py by tests/generators/unasync.py. Do not edit.

"""The verbs that write one state: blind, compared, by a function, and the delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statecache.backoff import pause_s
from statecache.call_notes import note
from statecache.clock import monotonic
from statecache.commit_protocol.answers import Absent
from statecache.concurrency import entered, run
from statecache.core.arguments import refuse_no_function, refuse_no_list
from statecache.core.modifiers import checked_items, increment_write, items_write
from statecache.core.update.out_of_time import slow_function, unless_beaten
from statecache.core.view import VerbGroup, checked_change_id, checked_reason, checked_text, expected_of
from statecache.errors import AlreadyExists, NotFound, UsageError, VersionConflict
from statecache.keys import checked_key
from statecache.model import (
    ABSENT,
    PRESENT,
    STATES_PER_COMMIT_MAX,
    Durability,
    Expected,
    State,
    Ttl,
    Write,
)
from statecache.mutations import Add, Append, Create, Delete, Increment, Mutation, Remove, Set
from statecache.records import record_of_write
from statecache.signal_errors import is_of_handler

if TYPE_CHECKING:
    from statecache.model import Record

_PAUSE_S_MAX = 0.25
_NO_MUTATION = "a commit is made of Set, Create, Delete, Increment, Append, Add and Remove, not of {}"
_VERBS: dict[type, str] = {Append: "append", Add: "add", Remove: "remove"}
D = TypeVar("D")
V = TypeVar("V")


class Writes(VerbGroup[D], Generic[D]):
    """The verbs that write one state."""

    def set(
        self,
        name: str,
        value: D,
        *,
        expected: Expected = ...,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[D]:
        """Write the value and return the state; with `expected`, only where that is still the current state.

        `expected` is a State or its change_id, or None where there must be none, as `get` returns it; another state
        raises VersionConflict. Without it whatever is there is overwritten. Raises SchemaNewer where the expected state
        holds more than its type here knows, as one that a newer release wrote. `ttl`, in seconds or a timedelta, is how
        long the state lasts (the namespace's without it, `inf` for ever): from then on no read finds it, and a worker
        deletes it. `change_id` repeats an earlier write
        whose outcome is unknown: it is applied at most once. `timeout` is in seconds.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        write = self._view.write_of(key, value, expected=expected_of(key, expected), ttl=ttl)
        if isinstance(expected, (State, str)):
            run(self._refuse_to_drop_what_was_read(write, value, expected, end))
        return run(
            self._view.commit_one(
                write, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
            )
        )

    def _refuse_to_drop_what_was_read(self, write: Write, value: Any, expected: State[Any] | str, end: float) -> None:
        """Raise SchemaNewer where the state that a write continues holds more than was read of it."""
        if write.expected == ABSENT:
            return
        read = expected.value if isinstance(expected, State) else value
        codec, known = self._view.codec.of(read), isinstance(expected, State) and expected.schema
        if not codec.schema or known in codec.known:
            return
        record = self._view.kept(write.key)
        if record is None or record.change_id != write.expected:
            record = run(self._runtime.reader.record(write.key, end=end))
        if record.change_id == write.expected:
            self._view.refuse_to_drop(record, None if codec is self._view.codec else codec.type)

    def create(
        self,
        name: str,
        value: D,
        *,
        assume_new: bool = False,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[D]:
        """Write the first value and return the state; raise AlreadyExists where there is one.

        `assume_new` skips asking Postgres, for keys that are unique by construction; where that is wrong, the flusher
        sets the change aside as a conflict. `ttl` is how long the state lasts, as in `set`.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        write = self._view.write_of(key, value, expected=ABSENT, assume_new=assume_new, ttl=ttl)
        try:
            return run(
                self._view.commit_one(
                    write, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
                )
            )
        except VersionConflict:
            raise AlreadyExists(key) from None

    @overload
    def update(
        self, name: str, function: Callable[[D], D | D], *, default: D | Callable[[], D] = ...,
        ttl: Ttl | None = ..., durability: Durability | None = ..., actor: str = ..., reason: str = ...,
        timeout: float | None = ...,
    ) -> State[D]: ...  # fmt: skip
    @overload
    def update(
        self, name: str, function: Callable[[V], V | V], *, type: type[V],
        default: V | Callable[[], V] = ..., ttl: Ttl | None = ..., durability: Durability | None = ...,
        actor: str = ..., reason: str = ..., timeout: float | None = ...,
    ) -> State[V]: ...  # fmt: skip
    @overload
    def update(
        self, name: str, function: Callable[[Any], Any | Any], *, type: UnionType,
        default: Any = ..., ttl: Ttl | None = ..., durability: Durability | None = ..., actor: str = ...,
        reason: str = ..., timeout: float | None = ...,
    ) -> State[Any]: ...  # fmt: skip
    def update(
        self,
        name: str,
        function: Callable[[Any], Any | Any],
        *,
        type: Any = None,  # noqa: A002
        default: Any = ...,
        ttl: Ttl | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[Any]:
        """Read the state, call the function with its value, and write what it returns; again after a conflict.

        The function may be called several times, and may raise to abort: what it raises is passed on once the state
        that it was given is known to be the current one. Callers in this process take turns, and so do processes once
        they have met. `default` is a value, or a class or function that makes one, for a key that does not exist;
        without it NotFound is raised. With `type` the function is given, and returns, a value of it, which is checked
        before anything is written: another one raises CodecError. What is written ends when the state was to end,
        unless `ttl` or the namespace says how long it lasts from now on. Raises SchemaNewer where the state holds more
        than `type` knows, as one that a newer release wrote. `timeout` is for all of it, the function included: once it
        has passed, a conflict raises VersionConflict instead of another attempt.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        refuse_no_function(function, "update")
        self._view.refuse_unlike(default, type)

        def made(record: Record) -> Any:
            return run(self._called(function, record, default, type))

        return run(self._updated(
            key, made, type=type, ttl=ttl, durability=durability, actor=actor, reason=reason, end=end
        ))  # fmt: skip

    def _update_state(
        self,
        name: str,
        function: Callable[[State[Any] | None, str], Any | Any],
        *,
        durability: Durability | None = None,
        reason: str = "",
    ) -> State[Any]:
        """Do what `update` does, with a function of the state, None without one, and of the change it is written over.

        That change_id is the parent of what is committed.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(None)

        def made(record: Record) -> Any:
            return run(self._runtime.io.called(function(self._view.state_of(record), record.change_id)))

        return run(self._updated(
            key, made, type=None, ttl=None, durability=durability, actor="", reason=reason, end=end
        ))  # fmt: skip

    def _updated(
        self, key: str, made: Callable[[Record], Any], *, type: Any, ttl: Ttl | None,  # noqa: A002
        durability: Durability | None, actor: str, reason: str, end: float,
    ) -> State[Any]:  # fmt: skip
        """Commit what is made of the state as it was read, and return the new one; again after a conflict."""
        local, shared, reason = self._runtime.local_queues, self._runtime.shared_queues, checked_reason(reason)
        with entered(local.of(key, end=end)) as here, entered(shared.of(key, end=end)) as turn:
            record, conflicts, took_s = here.record or self._view.kept(key), 0, 0.0
            lost: VersionConflict | None = None
            while True:
                if run(turn.comes()):
                    record = turn.record
                elif conflicts and not turn.held:  # others want it too: spread over as many attempts as it takes
                    run(self._runtime.io.sleep(pause_s(conflicts + 1, took_s, _PAUSE_S_MAX)))
                begun, fresh = monotonic(), record is None or record is turn.record
                with unless_beaten(lost, end):
                    record = record or run(self._runtime.reader.record(key, end=end))
                record = self._runtime.redis.clock.lived(record)
                try:
                    value = run(made(record))
                    write = self._view.write_of(key, value, expected=record.tip, ttl=ttl, over=record, type=type)
                except Exception as error:  # whatever the function raised, or what it returned cannot be stored
                    if fresh or is_of_handler(error) or run(self._is_current(record, end)):
                        raise
                    record = None  # it was decided on a state that is no longer there
                    continue
                if monotonic() > end:
                    raise lost or slow_function()
                try:
                    with unless_beaten(lost, end):
                        state = run(self._view.commit_one(
                            write, durability=durability, actor=actor, reason=reason, end=end, change_id=None,
                            turn=turn,
                        ))  # fmt: skip
                except VersionConflict as error:
                    if monotonic() >= end:
                        raise
                    lost = error
                else:
                    here.committed(record_of_write(write, state))
                    return state
                record = None
                note(retries=1, conflicts=1)
                if fresh:
                    turn.crowd()
                    conflicts, took_s = conflicts + 1, min(monotonic() - begun, _PAUSE_S_MAX)

    def _called(self, function: Callable[[Any], Any], record: Record, default: Any, type: Any) -> Any:  # noqa: A002
        """Return what the function makes of a state, or of `default` without one; raise NotFound without both."""
        state = self._view.state_of(record, type)
        if state is None and default is ...:
            raise NotFound(record.key)
        self._view.refuse_to_drop(record, type)
        before = state.value if state is not None else self._view.made_default(record.key, default, type)
        value = run(self._runtime.io.called(function(before)))
        if value is None:
            raise UsageError("the function given to update returned None", hint="Return the new value.")
        return value

    def _is_current(self, record: Record, end: float) -> bool:
        """Return whether that is still the key's state, so that what was decided on it stands."""
        return (run(self._runtime.reader.record(record.key, end=end))).change_id == record.change_id

    def delete(
        self,
        name: str,
        *,
        expected: Expected = ...,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[None] | None:
        """Delete the state and return its tombstone, or None where there was nothing to delete.

        `expected` is as in `set`; with None, a state that exists raises VersionConflict. A delete that found nothing
        leaves nothing behind: repeated with its `change_id`, it deletes what is there by then.
        """
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        wanted = PRESENT if expected is ... else expected_of(key, expected)
        if wanted == ABSENT:
            run(self._expect_nothing([key], end))
            return None
        write = Write(key=key, op="delete", expected=wanted, ttl_ms=self._view.ttl_ms)
        try:
            return run(
                self._view.commit_one(
                    write, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
                )
            )
        except Absent:
            return None

    def _expect_nothing(self, keys: Sequence[str], end: float) -> None:
        """Raise VersionConflict for the first key of a state, which a delete did not expect."""
        self._view.locks_of(keys)  # who deletes nothing has to have his lease, too
        first, *others = keys
        records = {first: run(self._runtime.reader.record(first, end=end))}  # which opens a closed gate
        records |= run(self._runtime.many.primary(others, end=end)) if others else {}
        for key in keys:
            if records[key].exists:
                raise VersionConflict(key, None, records[key].change_id)

    def commit(
        self,
        writes: Sequence[Mutation],
        *,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> list[State[D] | None]:
        """Write up to 256 states of one group in one commit, all or none, and return them in order.

        Nothing is read first: `commit([Set("42/plan", plan), Append("42/log", [line]), Delete("42/draft")])`. Set,
        Create, Delete, Increment, Append, Add and Remove do what the verbs of these names do. A Delete gives its
        tombstone; with `expected=None`, None. Raises what the verbs of one state raise, with the key that
        hindered all of them, and NotFound for a Delete of what is not there. `change_id` repeats an earlier commit of
        the same writes whose outcome is unknown. `timeout` is in seconds.
        """
        end = self._view.end_of(timeout)
        refuse_no_list(writes, "commit")
        for one in writes:
            if not isinstance(one, Mutation):
                raise UsageError(_NO_MUTATION.format(type(one).__name__))
        told = {checked_key(self._view.full(one.name)): one for one in writes}
        if not 1 <= len(told) == len(writes) <= STATES_PER_COMMIT_MAX:
            what = f"{len(writes)} writes of {len(told)} keys"
            raise UsageError(f"a commit is of 1 to {STATES_PER_COMMIT_MAX} keys, each once, not of {what}")
        shard, asked = self._runtime.keys.one_group(told), {key: self._asked(key, one) for key, one in told.items()}
        for key, one in told.items():
            if isinstance(one, Set) and isinstance(one.expected, (State, str)):
                run(self._refuse_to_drop_what_was_read(asked[key], one.value, one.expected, end))
        if all(write.op == "check" for write in asked.values()):
            run(self._expect_nothing([*asked], end))
            return [None] * len(asked)
        commit = self._runtime.committer.new(
            [*asked.values()], shard, durability=self._view.durability_of(durability),
            actor=checked_text(actor, "actor"), reason=checked_reason(reason), end=end,
            change_id=change_id if change_id is None else checked_change_id(change_id),
            locks=self._view.locks_of([*asked], repeated=change_id is not None),
        )  # fmt: skip
        try:
            committed = run(self._runtime.committer.commit(commit))
        except Absent as error:
            raise NotFound(error.key) from None
        except VersionConflict as error:
            if isinstance(told[error.key], Create):
                raise AlreadyExists(error.key) from None
            raise
        run(self._view.applied((commit, committed)))
        states: dict[str, State[Any] | None] = dict.fromkeys(told)
        for at, write in enumerate(commit.written()):
            states[write.key] = self._view.committed_state(write, committed, at)
        return [*states.values()]

    def _asked(self, key: str, one: Mutation) -> Write:
        """Return the write that is asked for, with its value encoded."""
        if isinstance(one, Set):
            return self._view.write_of(key, one.value, expected=expected_of(key, one.expected), ttl=one.ttl)
        if isinstance(one, Create):
            return self._view.write_of(key, one.value, expected=ABSENT, assume_new=one.assume_new, ttl=one.ttl)
        if isinstance(one, Increment):
            return increment_write(self._view, key, one.by, ttl=one.ttl)
        if isinstance(one, (Append, Add, Remove)):
            return items_write(self._view, key, _VERBS[type(one)], checked_items(one.items), ttl=one.ttl)
        if not isinstance(one, Delete):
            raise UsageError(_NO_MUTATION.format(type(one).__name__))
        wanted = PRESENT if one.expected is ... else expected_of(key, one.expected)
        if wanted == ABSENT:
            return Write(key=key, op="check", expected=ABSENT)
        return Write(key=key, op="delete", expected=wanted, ttl_ms=self._view.ttl_ms)
