"""A deployment of a test's own, with Redis servers that it may kill: the steps of which stories of failover are made.

One shard, so that n counts every commit. The flush here is the flusher's transaction in plain SQL and nothing else:
what a test puts into Postgres, and when, is its own choice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from statecache import Settings, State, StateCache
from statecache.concurrency import THREADS, run
from statecache.core.epoch.gate import Gate, Opened, Vouched
from statecache.core.postgres.migrate import migrate
from statecache.core.postgres.tier import PostgresTier
from statecache.core.redis.tier import RedisTier
from statecache.entries import ForeignEntry, change_set
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.model import ChangeSet
from statecache.rules.epochs import Authority
from statecache.testing.binaries import valkey_server
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import found
from tests.support.dirtiness import dirty_keys
from tests.support.gate_taps import Tap, TappedConnection, TappedLink
from tests.support.polling import pause_thread

RESERVATION_S = 0.2
SHARD = 0
SYNC_MS = 20_000


class Fenced(Exception):
    """The shard's row is not of the epoch and server that a flush has read from."""


class Row(NamedTuple):
    """The shard's row in Postgres."""

    epoch: int
    replid: str
    flushed: int
    entries: int
    bytes: int


class World:
    """One shard's Postgres and the Redis servers of which one at a time is its primary."""

    def __init__(self, settings: Settings, folder: Path, ending: ExitStack, *, binary: Path | None = None) -> None:
        self.settings = settings
        self.keys = KeySpace(settings.prefix, settings.shards)
        self._folder = folder
        self._ending = ending
        self._binary = binary or valkey_server()
        self._clients: dict[str, StateCache] = {}
        self._raws: dict[str, Any] = {}

    # Servers.

    def start(self, name: str, **config: str) -> Valkey:
        """Start an empty server."""
        quick = {"repl-diskless-sync": "no", "repl-diskless-load": "swapdb"}  # the other ways take Valkey a second
        server = Valkey(self._folder, binary=self._binary, name=name, config=quick | config)
        self._ending.callback(server.discard)
        server.start()
        return server

    def replica(self, of: Valkey, name: str) -> Valkey:
        """Start a replica and wait until it has everything."""
        server = of.replica(name)
        self._ending.callback(server.discard)
        server.start()
        self.in_step(of)
        return server

    def in_step(self, primary: Valkey, *, replicas: int = 1) -> None:
        """Wait until that many replicas have what the primary has."""
        raw = self.raw(primary)
        raw.set("in-step", "1")
        assert raw.wait(replicas, SYNC_MS) >= replicas

    def promote(self, server: Valkey) -> None:
        """Make a replica a primary; its replid changes."""
        self.raw(server).execute_command("REPLICAOF", "NO", "ONE")

    def demote(self, server: Valkey, primary: Valkey) -> None:
        """Make a server a replica, and wait until it has everything."""
        self.raw(server).execute_command("REPLICAOF", "127.0.0.1", primary.port)
        self.in_step(primary)

    def replid(self, server: Valkey) -> str:
        """Return the server's replication id."""
        return str(self.raw(server).info("replication")["master_replid"])

    # Connections.

    def on(self, server: Valkey, **more: Any) -> Settings:
        """Return the deployment's settings with that server as its Redis."""
        return Settings(**{**self.settings.model_dump(), "redis_url": server.url, **more})

    def raw(self, server: Valkey) -> Any:
        """Return a plain client without retries."""
        if server.name not in self._raws:
            client = redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0), decode_responses=True)
            self._raws[server.name] = self._ending.enter_context(client)
        return self._raws[server.name]

    def client(self, server: Valkey, **more: Any) -> StateCache:
        """Return an agent's client on that server; the same one each time, unless `more` gives settings of its own."""
        if more:
            return self._ending.enter_context(StateCache(settings=self.on(server, **more)))
        if server.name not in self._clients:
            self._clients[server.name] = self._ending.enter_context(StateCache(settings=self.on(server)))
        return self._clients[server.name]

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the deployment's schema and return its rows."""
        with self.session() as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def until_later_than(self, epoch: int) -> None:
        """Wait until Postgres' clock is past the second by which an epoch was numbered."""
        while self.sql("SELECT extract(epoch FROM clock_timestamp())::bigint") <= [(epoch,)]:
            pause_thread()

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a plain connection to Postgres, in the deployment's schema, and close it at the end."""
        path = f"-c search_path={self.settings.postgres_schema}"
        with psycopg.connect(self.settings.postgres_url, autocommit=True, options=path) as connection:
            yield connection

    # What agents, openers and flushers do.

    def put(self, server: Valkey, key: str, value: Any, **more: Any) -> State[Any]:
        """Write as an agent."""
        return self.client(server).set(key, value, **more)

    def open(
        self, server: Valkey, authority: Authority = "worker", *, tap: Tap | None = None,
        vouched: Sequence[str] | None = None, **more: Any,
    ) -> list[Opened]:  # fmt: skip
        """Open the gate on somebody's word; `tap` is told of every exchange, before and after it.

        Unless it is said for which servers they vouch, an operator names the one that the row names, and a worker has
        run ever since the first epoch.
        """
        settings = self.on(server, **{"reservation_s": RESERVATION_S} | more)
        link = run(RedisTier(settings, self.keys, io=THREADS).link())
        session = run(PostgresTier(settings, self.keys, io=THREADS).session())
        try:
            if vouched is None:
                vouched = {"operator": [self.row().replid], "worker": self._servers()}.get(authority, [])
            gate = Gate(settings, self.keys, by=f"the {authority}", authority=authority, vouched=Vouched(vouched))
            if tap is None:
                return run(gate.open(link, session.connection, [SHARD]))
            tapped: Any = TappedConnection(session.connection, tap)
            return run(gate.open(TappedLink(link, tap), tapped, [SHARD]))  # type: ignore[arg-type]
        finally:
            run(link.close())
            run(session.close())

    def gate(self, server: Valkey, *, vouched: Sequence[str] = ()) -> WorkersGate:
        """Return what a worker opens gates with at that server's URL, again and again."""
        return WorkersGate(self, server, vouched)

    def _servers(self) -> list[str]:
        return [replid for (replid,) in self.sql("SELECT DISTINCT replid FROM epoch")]

    def flush(self, server: Valkey, *, most: int | None = None, ack: bool = True) -> int:
        """Move changes into Postgres as the flusher does; raise Fenced where the row is of another epoch or server."""
        replid, (epoch, opened_on, *_) = self.raw(server).eval(script("heads").text, 1, self.keys.meta(SHARD), "on")[
            ::2
        ]
        entries = self.entries(server)
        with self.session() as connection, connection.transaction():
            row = self._row(connection, lock=True)
            if (str(row.epoch), row.replid, row.replid) != (epoch, opened_on, replid):
                raise Fenced(f"{server.name} is at {epoch} of {opened_on}, the row is {row}")
            new = [entry for entry in entries if entry.position.n > row.flushed][:most]
            assert [entry.position.n for entry in new] == [*range(row.flushed + 1, row.flushed + 1 + len(new))]
            for entry in new:
                _insert(connection, entry)
            if new:
                last = new[-1]
                totals = (last.position.n, last.entries, last.bytes)
                connection.execute("UPDATE shard SET flushed = %s, entries = %s, bytes = %s", totals)
        if ack:
            assert self.ack(server, epoch=int(epoch), replid=replid) == 1
        return len(new)

    def ack(self, server: Valkey, *, epoch: int, replid: str, numbers: Sequence[int] | None = None) -> int:
        """Tell Redis the watermark: the row's, or flushed n, entries and bytes as given."""
        keys = [self.keys.meta(SHARD), self.keys.events(SHARD)]
        numbers = numbers or self.row()[2:]
        return int(self.raw(server).eval(script("ack").text, 2, *keys, epoch, replid, *numbers, 0))

    # What there is.

    def row(self) -> Row:
        """Return the shard's row."""
        with self.session() as connection:
            return self._row(connection, lock=False)

    def _row(self, connection: psycopg.Connection[Any], *, lock: bool) -> Row:
        query = b"SELECT epoch, replid, flushed, entries, bytes FROM shard" + b" FOR UPDATE" * lock
        found = connection.execute(query).fetchone()
        assert found is not None
        return Row(*found)

    def meta(self, server: Valkey) -> dict[str, str]:
        """Return the shard's meta."""
        found: dict[str, str] = self.raw(server).hgetall(self.keys.meta(SHARD))
        return found

    def state(self, server: Valkey, key: str) -> dict[str, str]:
        """Return a state's hash; empty where there is none."""
        found: dict[str, str] = self.raw(server).hgetall(self.keys.state(key))
        return found

    def value(self, server: Valkey, key: str) -> Any:
        """Return a state's value as an agent reads it; None where there is none."""
        found = self.client(server).get(key)
        return found and found.value

    def entries(self, server: Valkey) -> list[ChangeSet]:
        """Return the stream's entries that a commit wrote, in the order of their ids."""
        with redis.Redis.from_url(server.url) as client:
            found = client.xrange(self.keys.changes(SHARD))
        ours = []
        for entry_id, fields in found:
            with suppress(ForeignEntry):
                ours.append(change_set(entry_id, [part for pair in fields.items() for part in pair]))
        return ours

    def epochs(self) -> list[tuple[int, int]]:
        """Return the epochs with their starts."""
        return [(epoch, start) for epoch, start in self.sql("SELECT epoch, start_n FROM epoch ORDER BY epoch")]

    def chain(self, key: str) -> list[str]:
        """Return the change_ids of a key's chain in Postgres; assert that it is whole."""
        rows = self.sql("SELECT version, change_id, parent_change_id FROM change WHERE key = %s ORDER BY version", key)
        parent = ""
        for at, (version, change_id, named) in enumerate(rows, 1):
            assert (version, named) == (at, parent), f"the chain of {key} breaks at {version}"
            parent = change_id
        return [change_id for _, change_id, _ in rows]

    def conflicts(self) -> set[str]:
        """Return the change_ids that were set aside."""
        return {change_id for (change_id,) in self.sql("SELECT change_id FROM conflict")}

    # What must always hold of an open shard.

    def check(self, server: Valkey) -> None:
        """Assert that an open shard is sound: numbers, marks, stream and states agree with each other."""
        meta, row = self.meta(server), self.row()
        assert (meta["epoch"], meta["replid"]) == (str(row.epoch), row.replid)
        assert meta["replid"] == self.replid(server)
        assert not {"reservation", "continues", "reserved_until"} & meta.keys()
        n, flushed = int(meta["n"]), int(meta["flushed"])
        assert flushed == row.flushed <= n
        behind = [int(meta[name]) - int(meta[f"flushed_{name}"]) for name in ("entries", "bytes")]
        entries = self.entries(server)
        assert len(entries) == self.raw(server).xlen(self.keys.changes(SHARD))
        unflushed = [entry for entry in entries if entry.position.n > flushed]
        assert [entry.position.n for entry in unflushed] == [*range(flushed + 1, n + 1)]
        assert behind[0] == len(unflushed)
        assert behind[1] >= 0
        assert (behind[1] == 0) == (not unflushed)
        self._check_states(server, unflushed)

    def _check_states(self, server: Valkey, unflushed: Sequence[ChangeSet]) -> None:
        raw, shard = self.raw(server), SHARD
        newest = {change.key: (entry.position.n, change) for entry in unflushed for change in entry.changes}
        assert raw.zscore(self.keys.unflushed(shard), "_") == -1
        assert dirty_keys(raw, self.keys, shard) == {key: n for key, (n, _) in newest.items()}
        assert "_" in raw.hgetall(self.keys.hydrating(shard))
        tips = {key: rest for key, *rest in self.sql("SELECT key, version, change_id, op FROM state")}
        prefix = self.keys.state("x/y").removesuffix("x/y")
        for redis_key in raw.scan_iter(f"{prefix}*"):
            state = raw.hgetall(redis_key)
            key = state["key"]
            if key in newest:
                assert (state["version"], state["change_id"]) == (
                    str(newest[key][1].version),
                    newest[key][1].change_id,
                )
                assert raw.pttl(redis_key) == -1, f"{key} is dirty and may expire"
            elif state["op"] == "absent":
                assert key not in tips
            else:
                assert [int(state["version"]), state["change_id"], state["op"]] == tips[key], f"{key} is stale"


class WorkersGate:
    """A worker's gate on one server, with what it remembers from one opening to the next."""

    def __init__(self, world: World, server: Valkey, vouched: Sequence[str]) -> None:
        self._world = world
        self._settings = world.on(server, reservation_s=RESERVATION_S)
        names = Vouched(vouched)
        self._gate = Gate(self._settings, world.keys, by="the worker", authority="worker", vouched=names)
        self.tap: Tap | None = None
        """What is told of every exchange, before and after it."""

    @property
    def rescued(self) -> int:
        """How many changes of an old primary it has kept."""
        return self._gate.rescued

    def open(self) -> list[Opened]:
        """Open the shard, or say why not."""
        opened: list[Opened] = self._with(self._gate.open)
        return opened

    def rescue(self) -> bool:
        """Keep what the server takes beside the lineage, and return whether it is such a server."""
        beside, _ = self._with(self._gate.rescue)
        return bool(beside)

    def _with(self, verb: Callable[..., Any]) -> Any:
        link = run(RedisTier(self._settings, self._world.keys, io=THREADS).link())
        session = run(PostgresTier(self._settings, self._world.keys, io=THREADS).session())
        try:
            connection: Any = session.connection
            if self.tap is None:
                return run(verb(link, connection, [SHARD]))
            return run(verb(TappedLink(link, self.tap), TappedConnection(connection, self.tap), [SHARD]))
        finally:
            run(link.close())
            run(session.close())


def once(moment: str, then: Callable[[], object]) -> Tap:
    """Return a tap that calls `then` at the first such moment of an opening."""
    waiting = [then]

    def tap(now: str) -> None:
        if now == moment and waiting:
            waiting.pop()()

    return tap


def lose_from(server: Valkey, size: int) -> None:
    """Kill a server and take from its append-only file what was written after it had that size, in bytes."""
    server.kill()
    with append_only_file(server).open("r+b") as file:
        file.truncate(size)


def append_only_file(server: Valkey) -> Path:
    """Return the file to which a server is appending."""
    return max((server.folder / server.name / "appendonlydir").glob("*.incr.aof"))


def _insert(connection: psycopg.Connection[Any], entry: ChangeSet) -> None:
    for one in entry.changes:
        tip = connection.execute("SELECT version, change_id FROM state WHERE key = %s", (one.key,)).fetchone()
        assert (tip or (0, "")) == (one.version - 1, one.parent_change_id), f"{one.key} does not continue its tip"
        place = (one.key, one.version, one.change_id, one.parent_change_id, SHARD, *entry.position, one.op, one.value)
        about = (one.encoding, one.schema, entry.writer)
        connection.execute(
            "INSERT INTO change (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding,"
            " schema, writer, actor, reason, gap, at) VALUES (" + "%s, " * 12 + "'', '', false, %s)",
            (*place, *about, entry.at),
        )
        connection.execute("DELETE FROM state WHERE key = %s", (one.key,))
        connection.execute(
            "INSERT INTO state (key, version, change_id, parent_change_id, shard, epoch, n, op, value, encoding,"
            " schema, writer, updated_at) VALUES (" + "%s, " * 12 + "%s)",
            (*place, *about, entry.at),
        )


KINDS = [kind for kind in found().kinds if kind in ("embedded", "debian")] or ["embedded"]
"""The kinds of Redis whose programs are at hand to be started and killed."""


@contextmanager
def world(make_settings: Callable[..., Settings], folder: Path, *, kind: str = "embedded") -> Iterator[World]:
    """Create an empty deployment; the story starts its servers, of that kind, and adopts the first."""
    binary = Path(shutil.which("redis-server") or "") if kind == "debian" else valkey_server()
    with ExitStack() as ending:
        settings = make_settings(migrated=False, shards=1, redis_url="redis://127.0.0.1:1/0")
        run(migrate(settings, redis=False, io=THREADS))
        yield World(settings, folder, ending, binary=binary)
