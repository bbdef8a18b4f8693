# Generated from statecache/_async/transaction.py by tests/generators/unasync.py. Do not edit.

"""WATCH, the user's Python, MULTI / the commit script / EXEC: on a connection of its own.

WATCH aborts early, the script decides: every key of the transaction goes into the script with the change_id that was
read, those that were only read as a check. So an EXEC whose reply was lost, or a script that the server had forgotten,
is carried on outside of MULTI with the same change_id and the same meaning.

The connection goes back to the pool only after a reply that ends the watching was read; else it is closed. It is held
while the user's Python runs, so transactions have at most half of a client's connections.

`timeout` is for all that the transaction waits for, at its begin and at its end; the user's Python is not counted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from redis.exceptions import NoScriptError

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.concurrency import run
from statecache.errors import AlreadyExists, CodecError, NotFound, RedisUnavailable, UsageError, VersionConflict
from statecache.keys import checked_key
from statecache.lua import script
from statecache.model import STATES_PER_COMMIT_MAX, Record, State, Ttl, Write
from statecache.records import FIELDS, record_of
from statecache.redis_errors import DEMOTED, FINAL, code_of, found_at, refusal
from statecache.schemas import same_class

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Committed
    from statecache.commit_protocol.commit import Commit
    from statecache.core.redis.connection import Link
    from statecache.core.view import View

D = TypeVar("D")
V = TypeVar("V")


class Transaction(Generic[D]):
    """One transaction over the keys that it was opened with, all of one group.

    Reads see the states as of its start and writes are kept until its end, when all of them are committed or none:
    VersionConflict means that any of the keys was changed by someone else. `states` holds what was committed. It is of
    one block: entered again, or read or written outside of it, it raises UsageError.
    """

    def __init__(
        self, view: View[D], names: tuple[str, ...], *, durability: str | None, actor: str, reason: str,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self._view = view
        self._runtime = view.runtime
        self._names = {name: checked_key(view.full(name)) for name in names}
        if not 1 <= len(names) <= STATES_PER_COMMIT_MAX:
            first = f", of which {names[0]!r} is the first" if names else ""
            raise UsageError(
                f"a transaction takes 1 to {STATES_PER_COMMIT_MAX} keys, not {len(names)}{first}",
                hint="What need not change together may be written in several transactions.",
            )
        self._keys = list(dict.fromkeys(self._names.values()))
        self._shard = self._runtime.keys.one_group(self._keys)
        self._durability = view.durability_of(durability)
        self._actor = actor
        self._reason = reason
        self._timeout = timeout
        self._stage = "has not begun"
        self._end_at = 0.0
        self._left_s = 0.0
        self._call = self._runtime.in_flight.call()
        self._link: Link | None = None
        self._records: dict[str, Record] = {}
        self._writes: dict[str, Write] = {}
        self._types: dict[str, Any] = {}
        self._states: dict[str, State[D]] = {}

    @property
    def states(self) -> dict[str, State[D]]:
        """What was committed, by name; empty until the block was left without an error."""
        return self._states

    def __enter__(self) -> Self:
        if self._stage != "has not begun":
            raise UsageError(f"the transaction {self._stage}", hint="Make a new one for what is read anew.")
        begun, self._stage = False, "is beginning"
        self._call.__enter__()
        try:
            run(self._begin())
            begun, self._stage = True, ""
        finally:
            if not begun:
                self._stage = "is over"
                self._call.__exit__()
        return self

    def _begin(self) -> None:
        """Watch and read every key, repeatedly until all of them are in Redis."""
        end, backoff, waited = self._view.moment_of(self._timeout), Backoff(0.005, 0.25), 0.0
        self._end_at = end
        run(self._runtime.committer.prepare(self._durability, self._shard, end=end))
        while not self._records:
            asked = monotonic()
            try:
                self._link = run(self._runtime.redis.pool.hold(max(end - asked, 0.001), waited))
                run(self._runtime.support.check_server(self._durability, self._link, end=end))
                missing = run(self._watch(self._link, end))
            except RedisUnavailable as error:
                run(self._leave())
                if error.reason == "pool":
                    waited += monotonic() - asked
                else:
                    run(self._runtime.redis.pool.drop_idle())
                if error.reason in ("refused", *FINAL) or backoff.outlasts(end):
                    raise
                run(self._runtime.io.sleep(backoff.take()))
                continue
            except BaseException:  # nothing may stay watched on a pooled connection
                run(self._leave())
                raise
            if missing:
                run(self._leave())
                run(self._runtime.hydrator.load(missing, end=end, to_write=True))
            elif (older := self._older_than_seen()) is not None:
                run(self._leave())
                self._records = {}
                run(self._runtime.reader.record(older, end=end))
        self._left_s = end - monotonic()

    def _watch(self, link: Link, end: float) -> list[str]:
        """Watch and read every key in one round trip, and return the keys that are not in Redis."""
        redis_keys = [self._runtime.keys.state(key) for key in self._keys]
        meta, fence = self._runtime.keys.meta(self._shard), self._runtime.settings.fence
        gate = link.call(script("fenced_read"), [meta], [fence])
        commands = [("WATCH", *redis_keys), gate, *(("HMGET", redis_key, *FIELDS) for redis_key in redis_keys)]
        link.watching = True
        watched, proof, *replies = run(link.run(commands, seconds=max(end - monotonic(), 0.001)))
        if isinstance(watched, Exception):
            raise refusal(watched, redis_keys[0]) from watched
        if watched != b"OK":
            run(link.close())
            raise RedisUnavailable("connection", detail="a reply belongs to another request")
        if not run(self._is_open(link, proof, end)):
            return []
        records: dict[str, Record] = {}
        for key, redis_key, reply in zip(self._keys, redis_keys, replies, strict=True):
            if isinstance(reply, Exception):
                raise refusal(reply, redis_key) from reply
            record = record_of(redis_key, key, reply)
            if record is not None:
                records[key] = record
        if len(records) == len(self._keys):
            self._records = {key: self._runtime.redis.clock.lived(record) for key, record in records.items()}
        return [key for key in self._keys if key not in records]

    def _is_open(self, link: Link, proof: Any, end: float) -> bool:
        """Return whether the shard is open on that primary; where it is not, open it and have everything read again."""
        link.knows(script("fenced_read"), not isinstance(proof, Exception))
        if isinstance(proof, list) and proof[0] == b"OK":
            return True
        if isinstance(proof, list) and proof[0] == b"FOREIGN":
            raise found_at(proof[1].decode("utf-8", "replace"), proof[2].decode("utf-8", "replace"))
        if isinstance(proof, Exception) and not isinstance(proof, NoScriptError):
            if code_of(proof) in DEMOTED:
                run(self._runtime.redis.leave(link))
            raise refusal(proof, self._runtime.keys.meta(self._shard)) from proof
        run(self._leave())
        if isinstance(proof, list):
            run(self._runtime.opener.open(self._shard, end=end))
        return False

    def _older_than_seen(self) -> str | None:
        """Return the first key of which this process has seen a newer state than was read, if there is one."""
        seen = self._runtime.near.seen
        return next((key for key, one in self._records.items() if not seen(key, (one.epoch, one.version))), None)

    @overload
    def get(self, name: str) -> State[D] | None: ...
    @overload
    def get(self, name: str, *, type: type[V]) -> State[V] | None: ...
    @overload
    def get(self, name: str, *, type: object) -> State[Any] | None: ...
    def get(self, name: str, *, type: Any = None) -> State[Any] | None:  # noqa: A002
        """Return the state as of the transaction's start, or None."""
        key = self._key(name)
        self._types[key] = type
        return self._view.state_of(self._records[key], type)

    def set(self, name: str, value: D, *, ttl: Ttl | None = None) -> None:
        """Write the value at the end; raise SchemaNewer at once where there is more than was read.

        Where nothing was read, that is where there is more than the type knows, as of a newer release; without a type,
        than the value's class knows of a state of that class. The state ends when it was to end, unless `ttl` or the
        namespace says how long it lasts from the commit on.
        """
        key = self._key(name)
        record, pending = self._records[key], self._writes.get(key)
        over = record if pending is None or pending.op != "delete" else None  # what was deleted is to go, with its end
        if over is not None:
            self._refuse_to_drop(over, value)
        self._writes[key] = self._view.write_of(key, value, expected=record.tip, ttl=ttl, over=over)

    def _refuse_to_drop(self, record: Record, value: Any) -> None:
        """Raise SchemaNewer where a state holds more than what was read of it, or than the type that is written.

        Of what was not read a view without a type minds the states of the value's own class alone, and what a type
        cannot read at all it may replace.
        """
        if record.key in self._types:
            self._view.refuse_to_drop(record, self._types[record.key])
            return
        codec = self._view.codec.of(value)
        typed = codec is self._view.codec
        if codec.schema and (typed or same_class(record.schema, codec.schema)):
            with suppress(CodecError):
                self._view.refuse_to_drop(record, None if typed else codec.type)

    def create(self, name: str, value: D, *, ttl: Ttl | None = None) -> None:
        """Create the state at the end; raise AlreadyExists at once where there is one."""
        key = self._key(name)
        pending = self._writes.get(key)
        if self._records[key].exists if pending is None else pending.op == "set":
            raise AlreadyExists(key)
        self.set(name, value, ttl=ttl)

    def delete(self, name: str) -> None:
        """Delete the state at the end; raise NotFound at once where there is none."""
        key = self._key(name)
        pending = self._writes.get(key)
        if not (self._records[key].exists if pending is None else pending.op == "set"):
            raise NotFound(key)
        if not self._records[key].exists:
            del self._writes[key]
            return
        self._writes[key] = Write(key=key, op="delete", expected=self._records[key].tip)

    def _key(self, name: str) -> str:
        if name not in self._names:
            raise UsageError(f"{name!r} is not among the transaction's keys", hint="Name every key when opening it.")
        if self._stage:
            raise UsageError(f"the transaction {self._stage}", hint="Read and write within its block.")
        return self._names[name]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end_at = monotonic() + max(self._left_s, 0.001)
        self._stage = "is over"
        with self._call.ending():
            try:
                if kind is None:
                    run(self._end())
                elif self._link is not None and not issubclass(kind, Exception):  # who is cancelled waits for nothing
                    run(self._link.close())
            finally:
                run(self._leave())

    def _leave(self) -> None:
        """Give the connection back, watching nothing; close it where UNWATCH fails."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            if link.watching and link.alive:
                run(link.run([("UNWATCH",)], seconds=max(self._end_at - monotonic(), 0.001)))
                link.watching = False
        except RedisUnavailable:
            run(link.close())
        finally:
            self._runtime.redis.pool.give(link)

    def _end(self) -> None:
        """Commit what was written; a transaction that only read is compared all the same."""
        link = self._link
        if link is None:
            raise UsageError("the transaction is over")
        end = self._end_at
        if not self._writes:
            _, executed = run(link.run([("MULTI",), ("EXEC",)], seconds=max(end - monotonic(), 0.001)))
            link.watching = isinstance(executed, Exception)
            if executed != []:
                run(self._compare(end))
            return
        writes = [self._writes.get(key) or self._check(key) for key in self._keys]
        commit = self._runtime.committer.new(
            writes, self._shard, durability=self._durability, actor=self._actor, reason=self._reason, end=end,
            locks=self._view.locks_of([write.key for write in writes if write.op != "check"]),
        )  # fmt: skip
        committed = run(self._runtime.committer.commit_watched(commit, link, self._leave))
        run(self._view.applied((commit, committed)))
        self._note(commit, committed)

    def _compare(self, end: float) -> None:
        """Raise VersionConflict for the first key that has changed since the start."""
        for key in self._keys:
            expected, actual = self._records[key].change_id, (run(self._runtime.reader.record(key, end=end))).change_id
            if actual != expected:
                raise VersionConflict(key, expected, actual)

    def _check(self, key: str) -> Write:
        return Write(key=key, op="check", expected=self._records[key].tip)

    def _note(self, commit: Commit, committed: Committed) -> None:
        for at, write in enumerate(commit.written()):
            name = next(name for name, key in self._names.items() if key == write.key)
            self._states[name] = self._view.committed_state(write, committed, at)
