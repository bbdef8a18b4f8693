"""Epochs and their gates, roles of servers, and what is told to be lost."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant, Piece

GATES = {
    "went back": Mutant(
        "a Postgres that went back begins no epoch",
        "statecache/epochs.py",
        "    told = look.flushed == row.flushed or (look.flushed < row.flushed and look.server != UNFENCED)\n",
        "    told = True\n",
        by="failpoints",
    ),
    "untold forks": Mutant(
        "a gate is opened with forks in place that Postgres has set aside",
        "statecache/_async/epoch/opening.py",
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
    "replica left": Mutant(
        "a worker stays on a connection whose server says that it is a primary no more",
        "workers/statecache_workers/streams.py",
        "                await link.close()\n                raise no_primary(",
        "                raise no_primary(",
        by="roles failover_kept left_kept",
    ),
    "role of a reader": Mutant(
        "a read that is to be proven does not ask whether its server is a primary",
        "statecache/lua/fenced_read.lua",
        "  if not string.find(info, 'role:master', 1, true) then return",
        "  if not info then return",
        by="roles failover_stale",
        also=(
            Piece(
                "statecache/_async/redis/tracking.py",
                '(self._settings.fence == "on" and not reply.startswith(b"master "))',
                "not reply",
            ),
        ),
    ),
    "adoption": Mutant(
        "an empty Redis is adopted by whoever sets a deployment up, whatever Postgres knows of another one",
        "statecache/epochs.py",
        '    if begun or (authority == "worker" and (not row.epoch or row.replid in vouched)):\n',
        '    if begun or authority == "worker":\n',
        by="deployments migrate_empty workers_empty",
    ),
    "closed gate": Mutant(
        "a read is answered by a Redis on which the gate of its shard is closed",
        "statecache/lua/fenced_read.lua",
        "if not open then\n",
        "if not epoch then\n",
        by="roles promoted_unseen",
    ),
    "shard given up": Mutant(
        "a worker that cannot serve a shard keeps it for good",
        "workers/statecache_workers/avoidance.py",
        "        return sorted(shard for shard, served in self._served.items() if now - served > patience_s)\n",
        "        return sorted(shard for shard in () if patience_s < now)\n",
        by="roles left_forgotten",
    ),
    "listing after a restore": Mutant(
        "what a Postgres lacks that went back is not looked for in Redis",
        "statecache/lua/dirty.lua",
        "if ARGV[1] and tonumber(ARGV[1]) < tonumber(flushed) then flushed = ARGV[1] end\n",
        "",
        by="postgres restored",
    ),
    "lost told": Mutant(
        "whoever waits for a position that has died is not told that it has",
        "statecache/_async/commit/durable.py",
        "        if ended is not None:\n            return ended\n",
        "",
        by="model",
    ),
    "lost recorded": Mutant(
        "a dead position that somebody asks for is not recorded as lost",
        "statecache/_async/api/verbs.py",
        "                await self.runtime.losses.met(died, seconds=max(end - monotonic(), 0.001))\n",
        "                del died\n",
        by="model",
    ),
    "unfenced continuation": Mutant(
        "without a fence, what came back shorter and was written to is not compared with Postgres",
        "statecache/epochs.py",
        "    return (after, upto) if after < upto else None\n",
        "    return None\n",
        by="scenarios shorter",
    ),
    "old tail": Mutant(
        "what an old primary still takes is wiped with it",
        "statecache/_async/epoch/opening.py",
        "        if not old:\n",
        "        if True:\n",
        by="scenarios old_tail",
        also=(
            Piece(
                "statecache/_sync/epoch/opening.py",
                "        if not old:\n",
                "        if True:\n",
            ),
        ),
    ),
    "opening reader": Mutant(
        "a read opens a gate that it finds closed",
        "statecache/_async/read/reader.py",
        "            if isinstance(found, Closed) and to_write:\n",
        "            if isinstance(found, Closed):\n",
        by="deployments readers_detached",
    ),
    "continuation": Mutant(
        "of a data set that is at a higher epoch than its row it is not asked whether both hold the same",
        "statecache/epochs.py",
        "        return Opening(seen=seen, doubtful=True)\n",
        "        pass\n",
        by="scenarios restarts",
    ),
    "two installations": Mutant(
        "an agent does not ask whether its Redis and its Postgres belong together",
        "statecache/_async/redis/tier.py",
        "                await self._pairing.compare(self.cluster, max(end - monotonic(), 0.001))\n",
        "                pass\n",
        by="deployments agents_wrong_redis readers_wrong_redis",
    ),
    "numbers of epochs": Mutant(
        "an epoch on an empty Redis takes the next number, which a Postgres that went back may have issued before",
        "statecache/epochs.py",
        "row.now_s if row.epoch and look.is_bare else 0",
        "0",
        by="scenarios issued_twice",
    ),
    "strange epochs": Mutant(
        "what was written while another Postgres was there is taken for flushed",
        "statecache/epochs.py",
        "    return look.epoch is not None and look.epoch > row.epoch\n",
        "    return False\n",
        by="scenarios by_mistake",
    ),
    "loaded elsewhere": Mutant(
        "what was loaded from another Postgres stays in Redis",
        "statecache/_sync/epoch/opening.py",
        "        self._forget_loaded(raised, deletion)\n",
        "",
        by="scenarios loaded_by_mistake",
    ),
    "older copy": Mutant(
        "what an older copy of Postgres holds is loaded into Redis",
        "statecache/_sync/read/hydration.py",
        "        return (self.epoch, self.flushed) >= (int(epoch), flushed)\n",
        "        return True\n",
        by="scenarios older_copy",
    ),
    "trimmed branch": Mutant(
        "what an old Redis holds of what Postgres lost is looked for in its stream alone",
        "statecache/_sync/epoch/opening.py",
        "one.shard in self._strange or look.flushed > common",
        "one.shard in self._strange",
        by="scenarios trimmed",
    ),
}
