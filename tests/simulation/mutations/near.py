"""What processes keep near, and threads that share a client."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

NEAR = {
    "trust window": Mutant(
        "what is near is believed however long nothing was heard of the server",
        "statecache/near.py",
        "age_s >= self._window_s or ",
        "",
        by="coherence",
    ),
    "invalidation": Mutant(
        "what somebody has written stays near",
        "statecache/near.py",
        "                self._invalidations += 1\n                self._take(key)\n",
        "                self._invalidations += 1\n",
        by="coherence",
    ),
    "drop": Mutant(
        "what was near over a connection that is gone stays near",
        "statecache/near.py",
        "            entries, self._entries, self._bytes = self._entries, OrderedDict(), 0\n",
        "            entries = self._entries\n",
        by="coherence",
    ),
    "drop beside hits": Mutant(
        "what is near is dropped by going through what other threads reorder meanwhile",
        "statecache/near.py",
        "for key, entry in list(entries.items()):\n",
        "self._entries = entries\n            for key, entry in entries.items():\n",
        by="threads client_kill redis_reset",
    ),
    "one at a TLS socket": Mutant(
        "a thread sends on a TLS connection while another one reads it",
        "statecache/_sockets.py",
        "return _InTurn(connection, seconds, turn) if _is_tls(connection) else deadline(connection, seconds)",
        "return deadline(connection, seconds)",
        by="threads evict",
    ),
    "interrupted sender": Mutant(
        "a connection stays open although nobody knows what its interrupted sender has sent",
        "statecache/_sync/redis/connection.py",
        "            if not sent:\n                self.close()\n",
        "            pass\n",
        by="threads evict",
    ),
    "thrown away": Mutant(
        "a client that nobody closed leaves its threads and connections behind",
        "statecache/_sync/api/runtime.py",
        "finalize(self, _let_go, self.tracked, self.events, redis.pool, self.postgres.pool).atexit = False",
        "pass",
        by="threads evict",
    ),
    "own writes": Mutant(
        "what this process has written raises no floor",
        "statecache/near.py",
        "            self._saw(key, place)\n        return entry is not None",
        "        return entry is not None",
        by="coherence",
    ),
    "floor of a read": Mutant(
        "a read that was overtaken by a newer state fills the near cache",
        "statecache/near.py",
        " and (record.epoch, record.version) >= reading.floor",
        "",
        by="coherence",
    ),
    "version asked for": Mutant(
        "what is near is given below the version that was asked for",
        "statecache/_async/api/reads.py",
        "if entry is not None and (not min_version or entry.record.version >= min_version):",
        "if entry is not None:",
        by="coherence",
    ),
    "decoded values": Mutant(
        "what decoded values take does not count",
        "statecache/near.py",
        "        size = bytes_of(entry.record) + decoded_bytes(state.value)\n",
        "        size = bytes_of(entry.record)\n",
        by="scenarios decoded",
    ),
    "another data set": Mutant(
        "a heartbeat does not tell of another data set behind the same server",
        "statecache/lua/connection/heartbeat.lua",
        " or '') .. ' ' .. of\n",
        " or '')\n",
        by="scenarios swapped",
    ),
    "floors of a listing": Mutant(
        "a listing shows what is older than this process has seen",
        "statecache/_async/read/listing.py",
        "        if self._near.seen(record.key, (record.epoch, record.version)):\n",
        "        if True:\n",
        by="scenarios went_back",
    ),
    "cancelled verb": Mutant(
        "who is cancelled beside a Postgres that hangs waits until psycopg gives up asking it to stop",
        "statecache/_async/postgres/tier.py",
        "        return await async_severed(work, session.connection)\n",
        "        return await work()\n",
        by="scenarios frozen",
    ),
    "floors of a transaction": Mutant(
        "a transaction reads what is older than this process has seen",
        "statecache/_async/api/transaction.py",
        " if not seen(key, (one.epoch, one.version))), None)\n",
        " if not (seen or one)), None)\n",
        by="scenarios went_back",
    ),
    "shared reading": Mutant(
        "who asks for what is not stale shares a read that began before that",
        "statecache/_async/read/reader.py",
        "        if not mine and max_stale is not None and now - reading.begun > max_stale:\n",
        "        if False:\n",
        by="scenarios began_before",
    ),
    "bytes are life": Mutant(
        "a tracked connection is given up whose heartbeat waits behind much that is read",
        "statecache/_async/redis/tracking.py",
        "if now - max(self._heartbeat_call, self._came) > self._settings.near_window_s:",
        "if now - self._heartbeat_call > self._settings.near_window_s:",
        by="scenarios slow_network",
    ),
}
