"""What a server held at some moment, and what makes it so again: a Postgres put back, a Redis that takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.simulation.story import World

_CLEAR = "for _, name in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', name) end"


class Backup:
    """What Postgres held at some moment, except for who owns which shard."""

    def __init__(self, psql: psycopg.Connection[Any]) -> None:
        self._psql = psql
        with psql.transaction():
            for table in ("state", "shard"):
                psql.execute(f"DROP TABLE IF EXISTS older_{table}".encode())
                psql.execute(f"CREATE TABLE older_{table} AS SELECT * FROM {table}".encode())

    def age(self) -> int:
        """Return how many change-sets Postgres has taken since the backup."""
        query = "SELECT sum(s.flushed - o.flushed) FROM shard s JOIN older_shard o USING (shard)"
        (found,) = self._psql.execute(query).fetchall()
        return int(found[0])

    def put_back(self) -> None:
        """Restore the backup in one transaction."""
        psql = self._psql
        with psql.transaction():
            psql.execute("SELECT 1 FROM shard ORDER BY shard FOR UPDATE")
            psql.execute("DELETE FROM change c USING older_shard o WHERE c.shard = o.shard AND c.n > o.flushed")
            psql.execute("DELETE FROM state")
            psql.execute("INSERT INTO state SELECT * FROM older_state")
            psql.execute(
                "UPDATE shard s SET flushed = o.flushed, entries = o.entries, bytes = o.bytes, excepted = o.excepted "
                "FROM older_shard o WHERE o.shard = s.shard"
            )


class DataSet:
    """The data set of a Redis that takes over: an older copy of the shard of `key`, or no data at all."""

    def __init__(self, world: World, key: str | None) -> None:
        self._world = world
        raw, keys = world.raw, world.keys
        self._names = f"{keys.meta(keys.shard(key))}".removesuffix("meta") + "*" if key else f"{keys.prefix}:*"
        there = raw.keys(self._names) if key else []
        with raw.pipeline(transaction=True) as together:  # a worker may just be letting entries leave
            for name in there:
                together.pttl(name).dump(name)
            told = together.execute()
        self._held = [one for one in zip(there, told[::2], told[1::2], strict=True) if one[2] is not None]

    def take_over(self) -> None:
        """Replace the data in one MULTI, under another replid, and close every client connection."""
        raw = self._world.raw
        with raw.pipeline(transaction=True) as together:
            together.execute_command("REPLICAOF", "127.0.0.1", "1")
            together.execute_command("REPLICAOF", "NO", "ONE")
            together.eval(_CLEAR, 0, self._names)
            for name, ttl, dumped in self._held:
                together.restore(name, max(ttl, 0), dumped, replace=True)
            together.execute()
        raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
