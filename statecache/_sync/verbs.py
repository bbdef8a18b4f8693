# Generated from statecache/_async/verbs.py by tests/unasync.py. Do not edit.

"""The verbs of a client and of its namespaces: read, write, delete, list, commit together, wait until durable.

A namespace is the same verbs with names relative to it and a policy of its own, so both are this class; `full` makes
a key of a name. Every verb takes `timeout=` in seconds (the setting `timeout_s` without it) and raises the errors of
`statecache.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload

from statecache._bridge import called, sleep
from statecache._sync.answers import Absent
from statecache._sync.observing import note, observe
from statecache._sync.transaction import Transaction
from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.errors import NotFound, OutcomeUnknown, Quarantined, UsageError, VersionConflict
from statecache.keys import checked_key
from statecache.model import (
    ABSENT,
    BLIND,
    DURABILITIES,
    PRESENT,
    VALUE_BYTES_MAX,
    Durability,
    Policy,
    Position,
    Record,
    State,
    Write,
)
from statecache.records import time_of

if TYPE_CHECKING:
    from statecache._sync.answers import Committed
    from statecache._sync.tiers import Tiers

D = TypeVar("D")
V = TypeVar("V")
_SECONDS_MAX = 1_000_000
"""What a longer timeout is cut to, about eleven days: servers count it in milliseconds, in 32 bits."""


class Verbs(Generic[D]):
    """This holds the verbs; D is the type of values where a call names none."""

    def __init__(self, tier: Tiers, policy: Policy, prefix: str) -> None:
        self.tier = tier
        self._policy = policy
        self._prefix = prefix
        _check_policy(policy)
        self._codec = codec_for(policy.type if policy.type is not None else Any, policy.encoding)
        self._bytes_max = min(policy.value_bytes_max or tier.settings.value_bytes_max, tier.settings.value_bytes_max)
        self._ttl_ms = None if policy.redis_ttl is None else max(1, round(policy.redis_ttl.total_seconds() * 1000))
        if tier.observer is not None:
            observe(self, tier.observer)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds connections and cannot be pickled: make one in each process")

    # What the verbs and transactions share.

    def full(self, name: str) -> str:
        """This gives the key of a name."""
        return self._prefix + name if self._prefix and isinstance(name, str) else name

    def end_of(self, timeout: float | None) -> float:
        """This gives the moment until which a verb may take, on the monotonic clock."""
        seconds = self.tier.settings.timeout_s if timeout is None else timeout
        if not (isinstance(seconds, (int, float)) and 0 < seconds < inf):
            raise UsageError(f"timeout={timeout} is not a number of seconds above 0")
        return monotonic() + min(seconds, _SECONDS_MAX)

    def durability_of(self, durability: str | None) -> str:
        """This gives the level of a call: its own, the namespace's, or the setting."""
        level = durability or self._policy.durability or self.tier.settings.durability
        if level not in DURABILITIES:
            raise UsageError(f"durability {level!r} is not one of {', '.join(DURABILITIES)}")
        return level

    def write_of(self, key: str, value: Any, *, expected: str, assume_new: bool = False) -> Write:
        """This encodes a value for a commit, before any effect."""
        codec = self._codec
        return Write(
            key=key,
            op="set",
            expected=expected,
            value=codec.encode(value, key=key, bytes_max=self._bytes_max),
            encoding=codec.encoding,
            schema=codec.schema if codec.schema or value.__class__ is dict else codec.of(value).schema,
            ttl_ms=self._ttl_ms,
            assume_new=assume_new,
        )

    def state_of(self, record: Record, type: Any = None) -> State[Any] | None:  # noqa: A002
        """This decodes a record; None for a tombstone or an absence."""
        if not record.exists:
            if record.op == "quarantined":
                raise Quarantined(record.key, record.change_id)
            return None
        codec = self._codec if type is None else codec_for(type, self._policy.encoding)
        return State(
            key=record.key,
            value=codec.decode(record.value, key=record.key, encoding=record.encoding),
            epoch=record.epoch,
            version=record.version,
            change_id=record.change_id,
            parent_change_id=record.parent_change_id,
            position=Position.parse(record.position),
            updated_at=time_of(record.updated_at),
            writer=record.writer,
        )

    def committed_state(self, write: Write, value: Any, committed: Committed, at: int) -> State[Any]:
        """This is the state that a commit's write made, with the value as it was handed in."""
        return State(
            key=write.key,
            value=value,
            epoch=committed.position.epoch,
            version=committed.versions[at],
            change_id=committed.change_id,
            parent_change_id=committed.parents[at],
            position=committed.position,
            updated_at=time_of(committed.updated_at),
            writer=self.tier.settings.writer,
        )

    def _commit_one(
        self, write: Write, value: Any, *, durability: str | None, actor: str, reason: str, end: float,
        change_id: str | None,
    ) -> State[Any]:  # fmt: skip
        commit = self.tier.committer.new(
            [write],
            self.tier.keys.shard(write.key),
            durability=self.durability_of(durability),
            actor=_text(actor, "actor"),
            reason=_text(reason, "reason"),
            end=end,
            change_id=change_id if change_id is None else _change_id(change_id),
        )
        return self.committed_state(write, value, self.tier.committer.commit(commit), 0)

    # Reading.

    @overload
    def get(self, name: str, *, timeout: float | None = None) -> State[D] | None: ...
    @overload
    def get(self, name: str, *, type: type[V], timeout: float | None = None) -> State[V] | None: ...
    def get(self, name: str, *, type: Any = None, timeout: float | None = None) -> State[Any] | None:  # noqa: A002
        """This gives the current state, or None where there is none; a wrong type is a CodecError."""
        key = checked_key(self.full(name))
        return self.state_of(self.tier.reader.record(key, end=self.end_of(timeout)), type)

    def list(
        self,
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        order: Literal["key", "newest"] = "key",
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[State[Any]]:
        """This gives the states whose keys start with the prefix, those not yet in Postgres too.

        By key (byte order) or newest first. Not a snapshot: each state is as of some moment during the iteration.
        `timeout` bounds each exchange with a server. A state that only quarantine holds raises Quarantined, as it does
        when it is read.
        """
        if order not in ("key", "newest"):
            raise UsageError(f"order {order!r} is not 'key' or 'newest'")
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit} is not a number above 0")
        seconds = self.end_of(timeout) - monotonic()
        for record in self.tier.listing.records(self.full(prefix), order=order, limit=limit, seconds=seconds):
            state = self.state_of(record, type)
            if state is not None:
                yield state

    # Writing.

    def set(
        self,
        name: str,
        value: V,
        *,
        expected: State[Any] | str | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[V]:
        """This writes the value; with `expected` only where that is still the current state, else VersionConflict.

        `expected` is a State or its change_id. `change_id` repeats an earlier write whose outcome is unknown: it is
        applied at most once.
        """
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        write = self.write_of(key, value, expected=_expected(key, expected))
        return self._commit_one(
            write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
        )

    def create(
        self,
        name: str,
        value: V,
        *,
        assume_new: bool = False,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[V]:
        """This writes the first value, else AlreadyExists.

        `assume_new` skips asking Postgres for keys that are unique by construction; where that is wrong the flusher
        sets the change aside as a conflict.
        """
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        write = self.write_of(key, value, expected=ABSENT, assume_new=assume_new)
        return self._commit_one(
            write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
        )

    def update(
        self,
        name: str,
        function: Callable[[Any], Any | Any],
        *,
        type: Any = None,  # noqa: A002
        default: Any = ...,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[Any]:
        """This reads, calls the function with the value, and writes what it returns; again where someone was quicker.

        The function may be called several times, and may raise to abort. `default` is a value, or a class or function
        that makes one, for a key that does not exist; without it that is NotFound.
        """
        key, end, pause = checked_key(self.full(name)), self.end_of(timeout), 0.001
        while True:
            record = self.tier.reader.record(key, end=end)
            state = self.state_of(record, type)
            if state is None and default is ...:
                raise NotFound(key)
            before = state.value if state is not None else default() if callable(default) else default
            value = called(function(before))
            if value is None:
                raise UsageError("the function given to update returned None", hint="Return the new value.")
            write = self.write_of(key, value, expected=record.change_id)
            try:
                return self._commit_one(
                    write, value, durability=durability, actor=actor, reason=reason, end=end, change_id=None
                )
            except VersionConflict:
                if monotonic() + pause > end:
                    raise
            note(retries=1, conflicts=1)
            sleep(self.tier.rng.uniform(0, pause))
            pause = min(pause * 2, 0.1)

    def delete(
        self,
        name: str,
        *,
        expected: State[Any] | str | None = None,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        change_id: str | None = None,
        timeout: float | None = None,
    ) -> State[None] | None:
        """This deletes the state and gives its tombstone, or None where there was nothing to delete."""
        key, end = checked_key(self.full(name)), self.end_of(timeout)
        wanted = PRESENT if expected is None else _expected(key, expected)
        write = Write(key=key, op="delete", expected=wanted, ttl_ms=self._ttl_ms)
        try:
            return self._commit_one(
                write, None, durability=durability, actor=actor, reason=reason, end=end, change_id=change_id
            )
        except Absent:
            return None

    # Several states at once.

    def transaction(
        self,
        *names: str,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Transaction:
        """This opens a transaction over keys of one group: WATCH, your code, and one atomic commit at its end."""
        return Transaction(
            self, names, durability=durability, actor=_text(actor, "actor"), reason=_text(reason, "reason"),
            timeout=timeout,
        )  # fmt: skip

    def transact(
        self,
        names: Sequence[str],
        function: Callable[[Transaction], Any],
        *,
        durability: Durability | None = None,
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Any:
        """This runs the function in a transaction, again where someone else was quicker, and gives its result."""
        end, pause = self.end_of(timeout), 0.001
        while True:
            left = max(end - monotonic(), 0.001)
            try:
                with Verbs.transaction(
                    self, *names, durability=durability, actor=actor, reason=reason, timeout=left
                ) as tx:
                    result = called(function(tx))
            except VersionConflict:
                if monotonic() + pause > end:
                    raise
            else:
                return result
            note(retries=1, conflicts=1)
            sleep(self.tier.rng.uniform(0, pause))
            pause = min(pause * 2, 0.1)

    # Durability afterwards.

    def wait_durable(self, state: State[V], *, timeout: float | None = None) -> State[V]:
        """This returns when Postgres holds the state's change in the current lineage.

        Raises Forked or Quarantined where it never will, and OutcomeUnknown(change_id) when the time is up.
        """
        end, shard = self.end_of(timeout), self.tier.keys.shard(state.key)
        self.tier.levels.check("postgres", end=end)
        self.tier.durable.watch(shard, end=end)
        position = state.position or Position(0, 0)
        if not self.tier.durable.wait(shard, position, state.change_id, [state.key], end=end):
            reason = "it was lost with the Redis that acknowledged it: neither tier holds it"
            raise OutcomeUnknown(state.change_id, keys=(state.key,), reason=reason)
        return state


def _check_policy(policy: Policy) -> None:
    if policy.durability not in (None, *DURABILITIES):
        raise UsageError(f"durability {policy.durability!r} is not one of {', '.join(DURABILITIES)}")
    if policy.redis_ttl is not None and not policy.redis_ttl > timedelta(0):
        raise UsageError(f"redis_ttl={policy.redis_ttl} is not a time above 0")
    if policy.value_bytes_max is not None and not 1 <= policy.value_bytes_max <= VALUE_BYTES_MAX:
        raise UsageError(f"value_bytes_max={policy.value_bytes_max} is not from 1 to {VALUE_BYTES_MAX}")


def _expected(key: str, expected: State[Any] | str | None) -> str:
    if expected is None:
        return BLIND
    if isinstance(expected, State):
        if expected.key != key:
            raise UsageError(f"expected= is a state of {expected.key!r}, not of {key!r}")
        return expected.change_id
    return _change_id(expected)


def _change_id(text: str) -> str:
    if not (isinstance(text, str) and 8 <= len(text) <= 64 and text.isascii() and text.isalnum()):
        raise UsageError(f"{text!r} is not a change_id", hint="A change_id is 8 to 64 ASCII letters and digits.")
    return text


def _text(text: str, what: str) -> str:
    try:
        if isinstance(text, str) and "\0" not in text and len(text.encode()) <= 1024:
            return text
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{what}= must be text without NUL, at most 1024 UTF-8 bytes")
