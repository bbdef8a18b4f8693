"""Stands for Postgres in clients of which everything is in one process: its tables are lists and dictionaries.

What a commit adds to a stream is taken over before the commit is acknowledged, and the watermark is moved as a worker's
script moves it: so everything is durable at once, nothing forks, and nothing is lost. Each of the client's statements
is a method of `Tables` with its name, and gives the rows that the file of that name describes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.clock import boottime, wall
from statecache.core.commit.endings import delete_ended
from statecache.core.postgres.tier import PostgresTier, Session
from statecache.entries import change_set
from statecache.errors import ConfigurationError
from statecache.expiry import until_of
from statecache.model import Record
from statecache.rules.filters import Filter, Selection
from statecache.testing.memory_history import HistoryTables

if TYPE_CHECKING:
    from statecache.concurrency import Beside, Concurrency
    from statecache.core.runtime import Runtime
    from statecache.keys import KeySpace
    from statecache.settings import Settings

CLUSTER = "00000000-0000-4000-8000-000000000000"
EPOCH = 1
"""The one epoch that a Redis in memory ever has."""
Row = tuple[Any, ...]


class Stored(NamedTuple):
    """One change, as the table `change` has it; `part` is its place in its commit, from 1 by key."""

    shard: int
    n: int
    part: int
    key: str
    op: str
    value: bytes
    version: int
    change_id: str
    parent_change_id: str
    encoding: str
    schema: str
    writer: str
    actor: str
    reason: str
    at: datetime
    kept: bool = True

    @property
    def record(self) -> Record:
        """The change as the state that it has made."""
        return Record(
            key=self.key, op=self.op, value=self.value, version=self.version, epoch=EPOCH, change_id=self.change_id,
            parent_change_id=self.parent_change_id, position=f"{EPOCH}-{self.n}", encoding=self.encoding,
            schema=self.schema, updated_at=self.at.isoformat(), writer=self.writer,
        )  # fmt: skip

    def as_state(self, *, value: bool = True, recent: Sequence[str] = ()) -> Row:
        """Return the row of a state."""
        return (self.key, self.op, self.value if value else b"", self.version, EPOCH, self.n, self.change_id,
                self.parent_change_id, self.encoding, self.schema, self.writer, self.at, [*recent])  # fmt: skip

    def as_change(self) -> Row:
        """Return the row of a change, as readers of changes get it."""
        value = self.value if self.kept else None
        return (self.shard, self.n, self.part, 0, self.key, self.op, value, self.version, EPOCH, self.change_id,
                self.parent_change_id, self.encoding, self.schema, self.writer, self.actor, self.reason, self.at, True,
                None, None, None, None, None, None)  # fmt: skip


class _Reader(NamedTuple):
    """A named reader of changes, as the table `consumer` has it."""

    prefix: str
    stands_at: str
    holder: str
    held_until: float


class Tables(HistoryTables):
    """What all clients of one deployment in memory share; `redis` is a plain client of their Redis."""

    def __init__(self, keys: KeySpace, redis: Any) -> None:
        super().__init__(keys, EPOCH)
        self._redis = redis
        self._mutex = threading.RLock()
        self._changes: dict[int, list[Stored]] = {shard: [] for shard in range(keys.shards)}
        self._locking: dict[str, tuple[str, int, str, datetime]] = {}
        self._readers: dict[str, _Reader] = {}
        self._histories: dict[str, Row] = {}

    def take_over(self) -> None:
        """Take over what commits have added to the streams, and have Redis and those who wait know."""
        with self._mutex:
            for shard, flushed in self._flushed.items():
                after = f"({EPOCH}-{flushed}"
                for entry_id, fields in self._redis.xrange(self._keys.changes(shard), min=after):
                    self._take(shard, entry_id, [part for pair in fields.items() for part in pair])

    def _take(self, shard: int, entry_id: bytes, fields: list[bytes]) -> None:
        found = change_set(entry_id, fields)
        for part, one in enumerate(sorted(found.changes, key=attrgetter("key")), 1):
            stored = Stored(
                shard, found.position.n, part, one.key, one.op, one.value, one.version, one.change_id,
                one.parent_change_id, one.encoding, one.schema, found.writer, found.actor, found.reason, found.at,
            )  # fmt: skip
            self._changes[shard].append(stored)
            self._chains.setdefault(one.key, []).append(stored)
        self._flushed[shard] = found.position.n
        flushed = {"flushed": found.position.n, "flushed_entries": found.entries, "flushed_bytes": found.bytes}
        self._redis.hset(self._keys.meta(shard), mapping=flushed)
        self._redis.spublish(self._keys.events(shard), f"{EPOCH} {found.position.n} 0 {CLUSTER}")

    def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a statement; raise ConfigurationError for one that no client needs."""
        answer: Callable[..., Sequence[Row]] | None = getattr(self, f"_{name}", None)
        if answer is None:
            raise ConfigurationError(f"{name} needs a Postgres, and this client has none: everything is in memory")
        with self._mutex:
            return [*answer(**parameters)]

    # What is read of states.

    def _watermarks(self, shards: Sequence[int], **_: Any) -> list[Row]:
        return [(shard, EPOCH, self._flushed[shard]) for shard in shards]

    def _states(self, keys: Sequence[str], **_: Any) -> Iterator[Row]:
        for key in keys:
            if chain := self._chains.get(key):
                yield chain[-1].as_state()

    def _vector_index(self, **_: Any) -> list[Row]:
        return []  # none can be made: all states are compared

    def _list_nearest(self, **_: Any) -> list[Row]:
        return []

    def _state_keys(self, keys: Sequence[str], **_: Any) -> Iterator[Row]:
        yield from ((key,) for key in keys if self._chains.get(key))

    def _recent_changes(self, keys: Sequence[str], **_: Any) -> Iterator[Row]:
        for key in keys:
            if newest := self._chains.get(key, [])[:-7:-1]:
                yield key, newest[0].version, [f"{one.change_id}@{EPOCH}-{one.n}" for one in newest]

    def _ended_states(self, now: str, limit: int, after: str, after_key: str, **_: Any) -> list[Row]:
        newest = [chain[-1] for chain in self._chains.values() if chain[-1].op == "set"]
        ended = sorted((f"{until_of(one.encoding)}", one.key) for one in newest if until_of(one.encoding) is not None)
        return [(key, until) for until, key in ended if until <= now and (until, key) > (after, after_key)][:limit]

    def _lost_keys(self, **_: Any) -> list[Row]:
        return []

    def _keys_under(self, prefixes: Sequence[str], beyond: Sequence[str], limit: int) -> Iterator[Row]:
        for prefix, end in zip(prefixes, beyond, strict=True):
            yield from [(prefix, key) for key in self._chains if prefix <= key < end][:limit]

    def _list_by_key(self, **asked: Any) -> list[Row]:
        return self._listed("key", asked)

    def _list_by_key_down(self, **asked: Any) -> list[Row]:
        return self._listed("key", asked, down=True)

    def _list_oldest(self, **asked: Any) -> list[Row]:
        return self._listed("at", asked)

    def _list_newest(self, **asked: Any) -> list[Row]:
        return self._listed("at", asked, down=True)

    def _listed(self, by: str, asked: Mapping[str, Any], *, down: bool = False) -> list[Row]:
        """Return a page of live states."""
        bounds = {name: asked[name] for name in ("prefix", "after", "before", "least", "most")}
        selection = Selection(**bounds, filter=Filter.of_patterns(asked["where"], without=asked["without"]))
        found = [
            one
            for one in (chain[-1] for chain in self._chains.values())
            if one.op == "set" and selection.means(one.key) and selection.filter.holds(one.record)
        ]
        found.sort(key=attrgetter(*dict.fromkeys((by, "key"))), reverse=down)
        return [one.as_state(value=asked["values"]) for one in found[: asked["limit"]]]

    # What became of commits.

    def _shards(self, shards: Sequence[int]) -> list[Row]:
        now = int(wall().timestamp())
        return [(shard, EPOCH, "", self._flushed[shard], CLUSTER, True, self._policies(), now) for shard in shards]

    def _lookup_change(self, change_id: str, shard: int, **_: Any) -> Iterator[Row]:
        for one in self._changes[shard]:
            if one.change_id == change_id:
                yield ("change", one.key, one.version, one.parent_change_id, EPOCH, one.n, one.op, one.at,
                       sha256(one.value).digest(), one.encoding if one.op == "set" else "")  # fmt: skip
        yield "shard", "", 0, "", EPOCH, self._flushed[shard], "", wall(), None, ""

    def _change_of(self, change_id: str, key: str, **_: Any) -> Iterator[Row]:
        for one in self._chains.get(key, ()):
            if one.change_id == change_id:
                yield one.op, one.version, one.parent_change_id, one.encoding, one.schema

    def _report_lost(self, **_: Any) -> list[Row]:
        return []

    def _position_lineage(self, epoch: int, **_: Any) -> list[Row]:
        return [(0 if epoch < EPOCH else None, EPOCH)]

    def _standing(self, shards: Sequence[int], epochs: Sequence[int], ns: Sequence[int], **_: Any) -> Iterator[Row]:
        for shard, epoch, n in zip(shards, epochs, ns, strict=True):
            yield shard, epoch, n, EPOCH, self._flushed[shard], n <= self._flushed[shard], False, False

    # How locks are kept.

    def _namespaces(self) -> list[Row]:
        return [(name, locking, by, at) for name, (locking, _, by, at) in sorted(self._locking.items())]

    def _set_locking(self, name: str, locking: str, by: str, seen: int) -> list[Row]:
        newest = max((revision for _, revision, _, _ in self._locking.values()), default=0)
        if newest < seen or self._locking.get(name, ("",))[0] != locking:
            self._locking[name] = (locking, max(newest, seen) + 1, by, wall())
        return [(self._policies(),)]

    def _declare_history(self, name: str, history: str, age: Any, count: int | None, by: str) -> list[Row]:
        return [self._histories.setdefault(name, (history, None if age is None else age.total_seconds(), count, by))]

    # Erasing.

    def _erase_look(
        self, keys: Sequence[str], prefixes: Sequence[str], beyond: Sequence[str], shard: int
    ) -> Iterator[Row]:  # fmt: skip
        yield "shard", "", self._flushed[shard], str(EPOCH)
        for key, chain in self._chains.items():
            if key in keys or any(first <= key < end for first, end in zip(prefixes, beyond, strict=True)):
                yield "key", key, chain[-1].version, ""

    def _erase_history(self, keys: Sequence[str], versions: Sequence[int], **_: Any) -> list[Row]:
        rows = size = 0
        for key, version in zip(keys, versions, strict=True):
            chain = self._chains[key]
            for at, one in enumerate(chain):
                if one.version <= version and one.writer:
                    rows, size = rows + 1, size + len(one.value)
                    chain[at] = one._replace(value=b"", writer="", actor="", reason="", kept=False)
                    of_shard = self._changes[one.shard]
                    of_shard[of_shard.index(one)] = chain[at]
        return [("change", rows, size)]

    def _erase_between(
        self, shard: int, after: int, key: str, prefixes: Sequence[str], beyond: Sequence[str]
    ) -> Iterator[Row]:  # fmt: skip
        yield "", EPOCH, self._flushed[shard]
        for one in self._changes[shard]:
            below = any(first <= one.key < end for first, end in zip(prefixes, beyond, strict=True))
            if one.n > after and (one.key == key or below):
                yield one.key, one.version, one.n

    def _erase_left(self, **_: Any) -> list[Row]:
        return []

    def _detach_branch(self, **_: Any) -> list[Row]:
        return [(None,)]

    def _enforced_locks(self) -> list[Row]:
        return [(self._policies(),)]

    def _policies(self) -> str:
        newest = max((revision for _, revision, _, _ in self._locking.values()), default=0)
        enforced = sorted(name for name, (locking, *_) in self._locking.items() if locking == "enforced")
        return f"{newest} " + "".join(f"{name} " for name in enforced)

    # Changes, and those who follow them.

    def _feed_changes(
        self, shards: Sequence[int], ns: Sequence[int], parts: Sequence[int], prefix: str, beyond: str, rows: int,
        **_: Any,
    ) -> Iterator[Row]:  # fmt: skip
        for shard, n, part in zip(shards, ns, parts, strict=True):
            ahead = [one for one in self._changes[shard] if one.n >= n]
            cut_at = ahead[rows].n if len(ahead) > rows else None
            yield shard, *(None,) * 17, [EPOCH, self._flushed[shard], 0, None, cut_at, 0, None]
            for one in ahead:
                means = prefix <= one.key < beyond and (one.n, one.part) > (n, part)
                if means and (cut_at is None or one.n < cut_at):
                    yield one.as_change()

    def _feed_states(self, prefix: str, beyond: str, after: str, rows: int, ops: Sequence[str]) -> list[Row]:
        there = sorted(key for key in self._chains if prefix <= key < beyond and key > after)
        newest = [self._chains[key][-1] for key in there]
        return [one.as_change() for one in newest if one.op in ops][:rows]

    def _take_consumer(self, name: str, prefix: str, stands_at: str, holder: str, lease: Any) -> list[Row]:
        now, known = boottime(), self._readers.get(name)
        if known is None:
            known = self._readers[name] = _Reader(prefix, stands_at, holder, now + lease.total_seconds())
        elif known.prefix == prefix and (known.holder == holder or known.held_until <= now):
            known = self._readers[name] = known._replace(holder=holder, held_until=now + lease.total_seconds())
        return [(known.prefix, known.stands_at, known.holder)]

    def _keep_consumer(self, name: str, holder: str, lease: Any, stands_at: str | None) -> list[Row]:
        known = self._readers.get(name)
        if known is None or known.holder != holder:
            return [(None,)]
        stands_at = known.stands_at if stands_at is None else stands_at
        until = boottime() + lease.total_seconds()
        self._readers[name] = known._replace(held_until=until, stands_at=stands_at)
        return [(True,)]


class MemoryPostgres(PostgresTier):
    """The tier of one client, whose statements `Tables` answers; it never connects."""

    def __init__(self, settings: Settings, keys: KeySpace, tables: Tables, *, io: Concurrency) -> None:
        super().__init__(settings, keys, io=io)
        self.cluster = CLUSTER
        self.runtime: Callable[[], Runtime | None] = lambda: None
        """Gives the client's, by which what has ended is deleted before changes are read: no worker does it here."""
        self._tables = tables

    async def session(self, seconds: float | None = None) -> Session:  # noqa: ARG002
        """Raise ConfigurationError: there is nothing to connect to."""
        raise ConfigurationError(
            "there is no Postgres here to begin an epoch in, for everything is in memory",
            hint="Make another one with statecache.testing.memory(): the data in this one were deleted.",
        )

    async def fetch_each(
        self, names: Sequence[str], parameters: Mapping[str, Any], *, seconds: float, beside: Beside | None = None
    ) -> list[list[Row]]:  # fmt: skip
        """Return the rows of each statement, as they are before `beside` is awaited."""
        if "feed_changes" in names and (runtime := self.runtime()) is not None:
            await delete_ended(runtime, range(runtime.keys.shards), seconds=seconds)
        found = [self._tables.rows(name, parameters) for name in names]
        if beside is not None:
            await beside()
        return found
