"""What every verb of a client, a namespace or a lease starts from: names, policy, values and limits of time.

A namespace is the same verbs with names relative to it and a policy of its own; `full` makes a key of a name. Every
verb takes `timeout=` in seconds (the setting `timeout_s` without it) and raises the errors of `statecache.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from msgspec.structs import replace

from statecache.clock import boottime, monotonic
from statecache.codec import codec_for
from statecache.core.arguments import checked_mode, made_default, refuse_unlike
from statecache.errors import CodecError, Quarantined, UsageError
from statecache.expiry import PLAIN_MAX, checked_ttl_ms, ending, expires_at, lasting, stored
from statecache.keys import checked_prefix_of_list
from statecache.model import (
    ABSENT,
    BLIND,
    DURABILITIES,
    Encoding,
    Expected,
    Policy,
    Position,
    Record,
    State,
    Ttl,
    Write,
)
from statecache.near import shareable
from statecache.records import time_of
from statecache.rules.filters import Selection, checked_bound, filter_of
from statecache.rules.leases import Holding, Locks, guards_of
from statecache.rules.provenance import refuse_provenance
from statecache.rules.retention import checked_retention
from statecache.settings import writer_of
from statecache.signal_errors import pass_on
from statecache.upgrading import UpgradingCodec

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.core.runtime import Runtime
    from statecache.core.update.shared_queue import SharedTurn
    from statecache.near import Entry

D = TypeVar("D")
_SECONDS_MAX = 1_000_000
"""The longest timeout, in seconds, about eleven days: servers count it in milliseconds, in 32 bits."""


class Automatic(Protocol):
    """What makes the checkpoints that a policy asks for."""

    async def after(self, view: Any, commit: Commit, committed: Committed) -> None:
        """Take note of a commit, and begin to make what is due."""

    async def before_step(self, view: Any, key: str) -> None:
        """Make what is due before a step begins."""


class View(Generic[D]):
    """What the verbs share; D is the type of values where a call names none."""

    def __init__(self, runtime: Runtime, policy: Policy, prefix: str) -> None:
        self.runtime = runtime
        self.policy = policy
        self.prefix = prefix
        self.near = runtime.near
        self.reads = policy.read or runtime.settings.read
        self.kind = policy.type if policy.type is not None else Any
        self.codec = codec_for(self.kind, policy.encoding)
        if policy.upgrade is not None:  # as a kind of its own, what it reads is shared with no other view
            self.kind = self.codec = UpgradingCodec(policy.type, policy.upgrade, encoding=policy.encoding)
        self.encoding: Encoding = "json" if policy.encoding == "raw" else policy.encoding
        """How what the library itself keeps is encoded, as the records of steps."""
        bytes_max = runtime.settings.value_bytes_max
        self.value_bytes_max = min(policy.value_bytes_max or bytes_max, bytes_max)
        self.holdings: tuple[Holding, ...] = ()
        """The leases that a commit is made under: none, unless this is a lease's."""
        self.automatic: Automatic | None = None
        """What makes checkpoints unasked, where the policy says so."""
        self.lasts_ms = checked_ttl_ms(policy.ttl)
        """How long a state lasts that is written without saying so, in ms; None for ever."""
        self.ttl_ms = None if policy.redis_ttl is None else max(1, round(policy.redis_ttl.total_seconds() * 1000))
        self.retention = checked_retention(policy.history, policy.retention, policy.retention_count)

    def full(self, name: str) -> str:
        """Return the key of a name."""
        return self.prefix + name if self.prefix and isinstance(name, str) else name

    def source(self, name: str) -> str:
        """Return the key of a name from which something is only taken."""
        return View.full(self, name)

    def selection(
        self, prefix: str, after: str | None, before: str | None, where: Mapping[str, Any] | None,
        without: Sequence[str],
    ) -> Selection:  # fmt: skip
        """Return which states a call means, those of some schemas left out; raise UsageError."""
        if not isinstance(prefix, str):
            checked_prefix_of_list(prefix, self.runtime.keys.shards)
        bounds = {
            what: "" if name is None else self.full(checked_bound(name, what))
            for what, name in (("after", after), ("before", before))
        }
        held = replace(filter_of(where), without=(*without,))
        return Selection(prefix=self.full(prefix), filter=held, **bounds)

    def end_of(self, timeout: float | None) -> float:
        """Return the monotonic moment at which a verb's time is up; raise UsageError while the client is closing."""
        if self.runtime.in_flight.closing:
            self.runtime.in_flight.refuse_if_closing()
        return self.moment_of(timeout)

    def moment_of(self, timeout: float | None) -> float:
        """Return the same moment for a part of a call that is under way already."""
        seconds = self.runtime.settings.timeout_s if timeout is None else timeout
        if not (isinstance(seconds, (int, float)) and 0 < seconds < inf):
            raise UsageError(f"timeout={timeout} is not a number of seconds above 0")
        return monotonic() + min(seconds, _SECONDS_MAX)

    def durability_of(self, durability: str | None) -> str:
        """Return the durability level of a call: its own, the namespace's, or the setting."""
        level = durability if durability is not None else self.policy.durability or self.runtime.settings.durability
        if level not in DURABILITIES:
            raise UsageError(f"durability {level!r} is not one of {', '.join(DURABILITIES)}")
        return level

    def write_of(
        self, key: str, value: Any, *, expected: str, assume_new: bool = False, ttl: Ttl | None = None,
        over: Record | None = None, type: Any = None,  # noqa: A002
    ) -> Write:  # fmt: skip
        """Return the write of a value, encoded before any effect; with `type` as a namespace of that type has it.

        It lasts as long as `ttl` says, or the namespace, or as what it is written over, or for ever.
        """
        codec = self.codec if type is None else codec_for(type, self.policy.encoding)
        encoding: str = codec.encoding
        if ttl is not None or self.lasts_ms is not None:
            encoding = lasting(encoding, self.lasting_ms(ttl))
        elif over is not None and over.exists and len(over.encoding) > PLAIN_MAX:
            encoding = ending(encoding, expires_at(over.encoding))
        data, seen = codec.encode(value, key=key, bytes_max=self.value_bytes_max)
        return Write(
            key=key,
            op="set",
            expected=expected,
            value=data,
            seen=seen,
            encoding=encoding,
            schema=codec.schema_for(value),
            ttl_ms=self.ttl_ms,
            assume_new=assume_new,
        )

    def lasting_ms(self, ttl: Ttl | None) -> float:
        """Return how long a state lasts that is written with that `ttl`, in ms; raise UsageError."""
        ms = self.lasts_ms if ttl is None else checked_ttl_ms(ttl)
        return inf if ms is None else ms

    def locks_of(self, keys: Sequence[str], *, repeated: bool = False) -> Locks | None:  # noqa: ARG002
        """Return the locks that a commit of these keys has to heed; None for most commits.

        With a namespace's first commit what is kept of its history is declared.
        """
        if self.retention is not None:
            self.runtime.history_policies.declare(keys[0].partition("/")[0], self.retention)
        locking = self.policy.locking
        if locking != "advisory" and self.runtime.policies.enforces(keys[0], locking):
            return Locks((), guards_of(keys), locking)
        return None if locking is None else Locks((), (), locking)

    def unguarded(self, key: str) -> Locks:
        """Return the locks of a commit that no lock can be in the way of."""
        return self.runtime.policies.unguarded(key, self.policy.locking)

    def state_of(self, record: Record, type: Any = None) -> State[Any] | None:  # noqa: A002
        """Decode a record; return None for a tombstone or an absence, raise Quarantined for a quarantined one."""
        if not record.exists:
            self.refuse_quarantined(record)
            return None
        codec = self.codec if type is None else codec_for(type, self.policy.encoding)
        value = codec.decode(record.value, key=record.key, encoding=record.encoding, schema=record.schema)
        return self.shown(record, value)

    def mode_of(self, read: str | None, max_stale: float | None) -> str:
        """Return how a call reads, or raise UsageError."""
        return checked_mode(self.reads if read is None else read, max_stale)

    def kept(self, key: str) -> Record | None:
        """Return what is kept here of a key, if it may be believed."""
        entry = self.near.look(key, boottime()) if self.reads == "local" else None
        return None if entry is None else entry.record

    async def read_record(self, key: str, mode: str, max_stale: float | None, least: int, end: float) -> Record:
        """Return the record of a key, read from where `mode` says."""
        if mode == "local":
            return await self.runtime.reader.local(key, end=end, least=least, max_stale=max_stale)
        if mode == "fenced":
            return await self.runtime.reader.fenced(key, end=end, least=least)
        return await self.runtime.reader.primary(key, end=end, least=least)

    def decoded(self, entry: Entry, kind: Any, type: Any) -> State[Any] | None:  # noqa: A002
        """Decode what is kept here, and share the value with later readers where it is immutable."""
        shape, record = entry.shape, entry.record
        codec = self.codec if type is None else codec_for(type, self.policy.encoding)
        private, read = entry.private
        if shape is not None:
            try:
                if codec is private and read is not None:
                    return replace(shape, value=read(record.value))
            except Exception as error:  # users' own classes take part
                pass_on(error)
                read = None  # the codec says what is wrong
            value = codec.decode(record.value, key=record.key, encoding=record.encoding, schema=record.schema)
            state = replace(shape, value=value)
        elif (found := self.state_of(entry.record, type)) is not None:
            entry.shape, state = replace(found, value=None), found
        else:
            entry.shared = kind, None
            return None
        if codec is not private and not (shareable(kind) and self.near.share(entry, kind, state)):
            entry.private = codec, codec.reader(record.encoding)
        return state

    def refuse_quarantined(self, record: Record) -> None:
        """Raise Quarantined where the newest change of a state is in quarantine, and only there."""
        if record.op == "quarantined":
            raise Quarantined(record.key, record.change_id)

    def state_without(self, record: Record, default: Any, type: Any = None) -> State[Any]:  # noqa: A002
        """Return a tombstone or an absence as a state whose value is the default, which no change has made."""
        value = self.made_default(record.key, default, type)
        return replace(self.shown(record, value), change_id="", parent_change_id="", schema="", expires_at=None)

    def refuse_unlike(self, default: Any, type: Any = None) -> None:  # noqa: A002
        """Raise UsageError for a default that is not of the type that is read."""
        if default is not ...:
            refuse_unlike(default, self.codec if type is None else codec_for(type, self.policy.encoding))

    def made_default(self, key: str, default: Any, type: Any = None) -> Any:  # noqa: A002
        """Return a default as a value that nobody else holds."""
        codec = self.codec if type is None else codec_for(type, self.policy.encoding)
        return made_default(default, codec, key=key, bytes_max=self.value_bytes_max)

    def shown(self, record: Record, value: Any) -> State[Any]:
        return State(
            key=record.key,
            value=value,
            epoch=record.epoch,
            version=record.version,
            change_id=record.change_id,
            parent_change_id=record.parent_change_id,
            position=Position.parse(record.position),
            updated_at=time_of(record.updated_at),
            writer=record.writer,
            schema=record.schema,
            expires_at=expires_at(record.encoding),
        )

    def refuse_to_drop(self, record: Record, type: Any = None) -> None:  # noqa: A002
        """Raise SchemaNewer where a record that was read with this type holds more than the type knows."""
        codec = self.codec if type is None else codec_for(type, self.policy.encoding)
        if record.exists and record.schema not in codec.known:
            codec.refuse_to_drop(record.value, key=record.key, encoding=record.encoding, schema=record.schema)

    def committed_state(self, write: Write, committed: Committed, at: int) -> State[Any]:
        """Return the state that a commit's write has made, with the value as readers get it."""
        updated_at = time_of(committed.updated_at)
        value, encoding, schema = write.seen, write.encoding, write.schema
        if write.modifier is not None:
            value, encoding, schema = self._made(write.key, committed, at)
        return State(
            key=write.key,
            value=value,
            epoch=committed.position.epoch,
            version=committed.versions[at],
            change_id=committed.change_id,
            parent_change_id=committed.parents[at],
            position=committed.position,
            updated_at=updated_at,
            writer=writer_of(self.runtime.settings),
            schema=schema,
            expires_at=expires_at(stored(encoding, updated_at)),
        )

    def _made(self, key: str, committed: Committed, at: int) -> tuple[Any, str, str]:
        """Return the value that a modifier has made, its encoding and its schema.

        Raises CodecError where what was there before is not of this view's type: reading it would have done so too.
        """
        data, encoding, schema = committed.made[at]
        try:
            return self.codec.decode(data, key=key, encoding=encoding, schema=schema), encoding, schema
        except CodecError as error:
            reason = f"{error.reason}; change {committed.change_id} is applied to it all the same"
            raise CodecError(key=key, verb="decoded", path=error.path, reason=reason) from error

    async def commit_one(
        self, write: Write, *, durability: str | None, actor: str, reason: str, end: float,
        change_id: str | None, turn: SharedTurn | None = None,
    ) -> State[Any]:  # fmt: skip
        commit = self.runtime.committer.new(
            [write],
            self.runtime.keys.shard(write.key),
            durability=self.durability_of(durability),
            actor=checked_text(actor, "actor"),
            reason=checked_reason(reason),
            end=end,
            change_id=change_id if change_id is None else checked_change_id(change_id),
            locks=self.locks_of((write.key,), repeated=change_id is not None),
        )
        commit.turn = turn
        committed = await self.runtime.committer.commit(commit)
        if turn is not None:
            turn.unlearnt = partial(self.runtime.unknown_outcomes.note, commit)
        if self.automatic is not None:
            await self.applied((commit, committed))
        return self.committed_state(write, committed, 0)

    async def applied(self, *done: tuple[Commit, Committed]) -> None:
        """Begin to make the checkpoints that commits make due; who is cancelled meanwhile learns of none of these."""
        if self.automatic is None:
            return
        try:
            for commit, committed in done:
                await self.automatic.after(self, commit, committed)
        except BaseException as error:  # these are applied, and their caller learns nothing of it
            for commit, _ in done:
                self.runtime.unknown_outcomes.note(commit, error)
            raise


class VerbGroup(Generic[D]):
    """Verbs of one view; a client, a namespace and a lease are several groups side by side."""

    def __init__(self, view: View[D]) -> None:
        self._view = view
        self._runtime = view.runtime

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds connections and cannot be pickled: make one in each process")


def expected_of(key: str, expected: Expected) -> str:
    """Return what a write expects: a change_id that must be current, that there is nothing, or anything.

    An ellipsis stands for an argument that was not given. None, which is what a read returns for an absence, expects
    one, and so does a state that is nothing but a default.
    """
    if expected is ...:
        return BLIND
    if expected is None:
        return ABSENT
    if isinstance(expected, State):
        if expected.key != key:
            raise UsageError(f"expected= is a state of {expected.key!r}, not of {key!r}")
        return expected.change_id or ABSENT
    return checked_change_id(expected)


def checked_change_id(text: str) -> str:
    """Return a change_id unchanged, or raise UsageError."""
    if not (isinstance(text, str) and 8 <= len(text) <= 64 and text.isascii() and text.isalnum()):
        raise UsageError(f"{text!r} is not a change_id", hint="A change_id is 8 to 64 ASCII letters and digits.")
    return text


def checked_text(text: str, what: str) -> str:
    """Return an actor or a reason unchanged, or raise UsageError."""
    if text == "":
        return ""
    try:
        if isinstance(text, str) and "\0" not in text and len(text.encode()) <= 1024:
            return text
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{what}= must be text without NUL, at most 1024 UTF-8 bytes")


def checked_reason(text: str) -> str:
    """Return a user's reason unchanged; raise UsageError, too, for one that reads like statecache's own."""
    return refuse_provenance(checked_text(text, "reason"))
