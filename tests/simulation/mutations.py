"""What is taken out of a copy of the tree, one thing at a time: each keeps a promise, and has to be missed."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """This takes one thing out of one file: the text must stand there, once."""

    what: str
    path: str
    old: str
    new: str
    by: str = "failpoints,chaos"


MUTANTS = {
    "dedupe": Mutant(
        "a repeated commit is not known again",
        "statecache/lua/commit.lua",
        "if seen then\n",
        "if false then\n",
    ),
    "fence": Mutant(
        "a commit does not ask whether this server opened the epoch",
        "statecache/lua/commit.lua",
        "if not epoch or replid ~= server then\n",
        "if not epoch then\n",
    ),
    "absence": Mutant(
        "what was expected to be absent is overwritten",
        "statecache/_async/scope.py",
        "        return ABSENT\n",
        "        return BLIND\n",
        by="model,chaos",
    ),
    "rights": Mutant(
        "a commit writes whether or not it may write all of it",
        "statecache/lua/commit.lua",
        "local may, lacking = redis.acl_check_cmd, nil\n",
        "local may, lacking = nil, nil\n",
        by="model",
    ),
    "copies": Mutant(
        "a change that is looked up is acknowledged at any level",
        "statecache/_async/repeats.py",
        "        if commit.durability in COPIED:\n",
        "        if False:\n",
        by="model",
    ),
    "used change_id": Mutant(
        "a change_id that stands for another value is answered as a repeat",
        "statecache/lua/commit.lua",
        "        if op and (op ~= ARGV[at + 1] or value ~= ARGV[at + 3]) then\n",
        "        if false then\n",
        by="model",
    ),
    "watermark": Mutant(
        "a flush does not compare the row's watermark with where it read from",
        "workers/statecache_workers/flusher.py",
        "if row is not None and row.flushed == one.start.n and agree(row, one.head, server):",
        "if row is not None and agree(row, one.head, server):",
    ),
    "went back": Mutant(
        "a Postgres that went back begins no epoch",
        "statecache/epochs.py",
        "    told = look.flushed == row.flushed or (look.flushed < row.flushed and look.server != UNFENCED)\n",
        "    told = True\n",
        by="failpoints",
    ),
    "untold forks": Mutant(
        "a gate is opened with forks in place that Postgres has set aside",
        "statecache/_async/opening.py",
        "            await deletion.delete_forks(one.shard, one.seen.look.excepted, one.excepted, upto=one.flushed)\n",
        "            pass\n",
        by="failpoints",
    ),
    "false loss": Mutant(
        "what an earlier epoch left to be flushed is taken for lost",
        "statecache/sql/lookup_change.sql",
        " AND start_n < %(n)s",
        "",
        by="chaos",
    ),
    "persist": Mutant(
        "a commit leaves a state its time to live",
        "statecache/lua/commit.lua",
        "    call('PERSIST', redis_key)\n",
        "",
    ),
    "evictability": Mutant(
        "a state whose moment was missed is never evictable again",
        "workers/statecache_workers/janitor.py",
        "self._keys.unflushed(shard), 0, last,",
        "self._keys.unflushed(shard), last, last,",
        by="model",
    ),
    "hydration token": Mutant(
        "a reader installs what it has read whatever happened meanwhile",
        "statecache/lua/hydrate_install.lua",
        "if standing and string.sub(standing, 1, #mine) == mine and redis.call('EXISTS', KEYS[i]) == 0 then",
        "if redis.call('EXISTS', KEYS[i]) == 0 then",
    ),
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
        "statecache/_sync/connect.py",
        "            if not sent:\n                self.close()\n",
        "            pass\n",
        by="threads evict",
    ),
    "thrown away": Mutant(
        "a client that nobody closed leaves its threads and connections behind",
        "statecache/_sync/tiers.py",
        "finalize(self, _let_go, self.line, self.events, redis.pool, self.postgres.pool).atexit = False",
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
        "statecache/_async/reads.py",
        "if entry is not None and (not min_version or entry.record.version >= min_version):",
        "if entry is not None:",
        by="coherence",
    ),
    "claim renewed": Mutant(
        "the claim of a step that lasts is not renewed",
        "statecache/_async/claims.py",
        "            if due:\n",
        "            if False:\n",
        by="steps",
    ),
    "claim taken again": Mutant(
        "a claim that was lost in an outage is not taken again",
        "statecache/_async/claims.py",
        'self._leases._call("take", one, link, seconds)',
        'self._leases._call("renew", one, link, seconds)',
        by="steps",
    ),
    "claim watched": Mutant(
        "whoever finds the claim of a step that was begun free takes its agent for dead at once",
        "statecache/_async/claims.py",
        "        elif begun and not (watched and self._watch.saw(monotonic() - now)):\n",
        "        elif False:\n",
        by="steps",
    ),
    "replicas counted": Mutant(
        "nobody counts how many replicas have acknowledged",
        "statecache/_async/levels.py",
        "        if reached < wanted:\n",
        "        if False:\n",
        by="roles replica_freeze",
    ),
    "synced commit": Mutant(
        "a worker's COMMIT waits for the disk only where the role's default does",
        "statecache/sql/local_limits.sql",
        "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'\n"
        "                                             ELSE current_setting('synchronous_commit') END",
        "current_setting('synchronous_commit')",
        by="postgres commit_unsynced",
    ),
    "lock": Mutant(
        "a lock is given away while somebody has it",
        "statecache/lua/lease.lua",
        "if not lease or until_ms <= now then\n",
        "if true then lease = nil\n",
        by="locks worker_kill",
    ),
    "fencing token": Mutant(
        "a commit does not ask whether its lease still stands",
        "statecache/lua/commit.lua",
        "    if stands ~= token then return { nonce, 'STALE', lock, token, holder or '' } end\n",
        "",
        by="locks redis_hold writer_pause",
    ),
    "leaving worker": Mutant(
        "a worker that ends over a connection that has died unseen keeps its shards until their leases are over",
        "workers/statecache_workers/worker.py",
        "                if self._database is None or self._database.alive:\n",
        "                if True:\n",
        by="postgres left_silent",
    ),
    "listing after a restore": Mutant(
        "what a Postgres lacks that went back is not looked for in Redis",
        "statecache/lua/dirty.lua",
        "if ARGV[1] and tonumber(ARGV[1]) < tonumber(flushed) then flushed = ARGV[1] end\n",
        "",
        by="postgres restored",
    ),
    "two installations": Mutant(
        "an agent does not ask whether its Redis and its Postgres belong together",
        "statecache/_async/redis.py",
        "                await self._pairing.compare(self.cluster, max(end - monotonic(), 0.001))\n",
        "                pass\n",
        by="deployments agents_wrong_redis readers_wrong_redis",
    ),
}
