"""What workers write to Postgres, and what they let leave Redis."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant, Piece

DURABLE = {
    "watermark": Mutant(
        "a flush does not compare the row's watermark with where it read from",
        "workers/statecache_workers/flusher.py",
        "if row is not None and row.flushed == one.start.n and agree(row, one.head, server):",
        "if row is not None and agree(row, one.head, server):",
    ),
    "evictability": Mutant(
        "a state whose moment was missed is never evictable again",
        "workers/statecache_workers/janitor.py",
        "self._keys.unflushed(shard), 0, last,",
        "self._keys.unflushed(shard), last, last,",
        by="model",
    ),
    "synced commit": Mutant(
        "a worker's COMMIT waits for the disk only where the role's default does",
        "statecache/sql/session/local_limits.sql",
        "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'\n"
        "                                             ELSE current_setting('synchronous_commit') END",
        "current_setting('synchronous_commit')",
        by="postgres commit_unsynced",
    ),
    "encoding": Mutant(
        "a connection to Postgres says in the database's default encoding what is UTF-8",
        "statecache/core/postgres/connection.py",
        '        "client_encoding": "utf8",\n',
        "",
        by="postgres default_encoding",
    ),
    "halved": Mutant(
        "a batch that Postgres cannot write in time is repeated as it was",
        "workers/statecache_workers/sizing.py",
        "        self._part = max(min(self._part, tried) / 2, 1 / self._entries_max)\n",
        "        self._part = min(1.0, tried + self._part)\n",
        by="postgres batch_slow",
    ),
    "locked rows": Mutant(
        "the leases of all shards wait for the one row that somebody else holds",
        "statecache/sql/worker/shards_renew.sql",
        " FOR UPDATE SKIP LOCKED\n",
        " FOR UPDATE\n",
        by="postgres row_locked",
    ),
    "warnings": Mutant(
        "a COMMIT that was not replicated is believed where the database's default hides warnings",
        "statecache/sql/session/local_limits.sql",
        "       set_config('client_min_messages', 'warning', true),\n",
        "",
        by="postgres commit_cancelled",
    ),
    "restored in place": Mutant(
        "a worker ends where Postgres is being restored in its place",
        "statecache/core/postgres/tier.py",
        "    def _missing(self, what: str, hint: str = _MIGRATE) -> PostgresUnavailable | ConfigurationError:\n",
        "    def _missing(self, what, hint=_MIGRATE):\n        return ConfigurationError(what)\n",
        by="scenarios restored_in_place",
    ),
    "opened in a restore": Mutant(
        "an agent that opens a shard while Postgres is being restored blames the configuration",
        "statecache/core/epoch/opener.py",
        "            raise self._postgres.misfit(error, hint, worked=bool(self._times)) from error\n",
        "            from statecache.errors import ConfigurationError\n\n"
        "            raise ConfigurationError(hint) from error\n",
        by="scenarios opened_in_a_restore",
    ),
    "rights granted last": Mutant(
        "whoever was granted its rights anew by a restore has ended by then",
        "statecache/core/postgres/tier.py",
        "        if worked or isinstance(error,",
        "        if isinstance(error,",
        by="scenarios rights_granted_last",
    ),
    "lost in part": Mutant(
        "a commit that is rebuilt from some of its states is taken for whole",
        "workers/statecache_workers/repair.py",
        "if states and len(states) >= max(len(keys), *map(_parts, states)):",
        "if states:",
        by="scenarios lost_in_part",
    ),
    "untold parts": Mutant(
        "a commit of several states does not leave with them how many it wrote",
        "statecache/lua/commit/commit.lua",
        "local parts = written > 1 and position .. ' ' .. written\n",
        "local parts = nil\n",
        by="scenarios lost_in_part",
    ),
    "half held": Mutant(
        "a commit of which Postgres holds a part is taken for held at the keys of that part",
        "statecache/sql/read/lookup_change.sql",
        "THEN 'part' ELSE",
        "THEN 'change' ELSE",
        by="scenarios half_lost",
    ),
    "lost in a gap": Mutant(
        "a repeat of what is gone with its entry is applied again where its state has forgotten it",
        "statecache/core/commit/durable.py",
        "            _refuse_lost(rows, change_id, keys, position)\n",
        "",
        by="scenarios lost_in_gap",
    ),
    "half written": Mutant(
        "a write that waits for Postgres goes on to repeat a commit of which a part is gone with its entry",
        "statecache/core/commit/committer.py",
        "        if ended <= PASSED:\n",
        "        if False:\n",
        by="scenarios half_lost_write",
    ),
    "forgotten loss": Mutant(
        "a commit that is gone with its entry is applied again once the state has left Redis",
        "workers/statecache_workers/lost_tails.py",
        "    if gap.changes:\n",
        "    if False:\n",
        by="scenarios lost_for_good",
    ),
    "unsaid loss": Mutant(
        "what only its writer knows of a commit that is gone is told to nobody else",
        "statecache/core/commit/committer.py",
        "        if isinstance(error, Lost) and error.position is not None:\n",
        "        if False:\n",
        by="scenarios lost_by_its_writer",
    ),
    "place forgotten": Mutant(
        "a writer that repeats a lost commit does not say that it was applied",
        "statecache/core/commit/committer.py",
        "                commit.applied_at = self._in_flight.position_of(commit.change_id, commit.keys[0])\n",
        "",
        by="scenarios lost_before_it_is_passed",
    ),
    "answer forgotten": Mutant(
        "a commit that its state knows to be applied, and not the answer, is looked up again and again",
        "statecache/lua/commit/commit.lua",
        "found_in, dup[3], forgotten = found_in + 1, found[1], true",
        "unsure = true",
        by="scenarios lost_before_it_is_passed",
    ),
    "loaded without losses": Mutant(
        "a state that is loaded does not know that changes of it are lost",
        "statecache/core/read/hydration.py",
        "lost=key in held.lost",
        "lost=False",
        by="scenarios lost_with_its_state",
    ),
    "losses of many": Mutant(
        "of the states behind a gap only the first thousand are asked what they remember",
        "workers/statecache_workers/repair.py",
        "            at += len(names)\n",
        "            return\n",
        by="scenarios lost_behind_many",
    ),
    "losses of one key": Mutant(
        "a writer records a loss at the first key of its commit",
        "statecache/commit_protocol/in_flight.py",
        "Acknowledged(shard, *position, change_id, keys)",
        "Acknowledged(shard, *position, change_id, keys[:1])",
        by="scenarios lost_at_all_keys",
    ),
    "untold gap": Mutant(
        "what is gone with its entry is not among what a client has lost",
        "statecache/sql/epoch/report_lost.sql",
        "WHERE a.change_id <> ''\n",
        "WHERE false\n",
        by="scenarios lost_in_gap",
    ),
    "retention": Mutant(
        "entries leave the stream as soon as they are flushed, where they were committed long ago",
        "workers/statecache_workers/flusher.py",
        "        for place in one.places(retention.step_bytes):\n",
        "        first = next((entry.change_set for entry in one.entries if entry.change_set), None)\n"
        "        now -= __import__('time').time() - first.at.timestamp() if first else 0.0\n"
        "        for place in one.places(retention.step_bytes):\n",
        by="postgres restored_behind",
    ),
    "leaving worker": Mutant(
        "a worker that ends over a connection that has died unseen keeps its shards until their leases are over",
        "workers/statecache_workers/worker.py",
        "                if self._database is None or self._database.alive:\n",
        "                if True:\n",
        by="postgres left_silent",
    ),
    "rescue": Mutant(
        "what is set aside leaves Redis although Postgres may not hold it",
        "statecache/core/postgres/connection.py",
        "    if doubt := doubt_of(tag, warnings):\n",
        '    if doubt := doubt_of("COMMIT", Warnings(connection)):\n',
        by="scenarios rescue",
    ),
    "silent flush": Mutant(
        "nobody ends a session in the middle of whose flush the connection died",
        "workers/statecache_workers/database.py",
        '        self._probing = asyncio.create_task(self._probe(limit), name="probe")\n',
        "        pass\n",
        by="postgres left_silent",
        also=(
            Piece(
                "workers/statecache_workers/ownership.py",
                "            if share.held or share.unowned:\n",
                "            if False:\n",
            ),
            Piece(
                "statecache/sql/session/local_limits.sql",
                "            THEN set_config('transaction_timeout', %(transaction)s, true) END,\n",
                "            THEN %(transaction)s::text END,\n",
            ),
        ),
    ),
    "holder of a row": Mutant(
        "status does not tell who holds the row of a shard that no worker can take",
        "statecache/cli/status/attention.py",
        "    reasons += [*_held(sample.held), *_hindered(sample.workers or ())]\n",
        "",
        by="postgres row_locked",
    ),
}
