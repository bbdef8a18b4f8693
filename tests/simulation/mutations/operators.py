"""What is told to those who run it."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

_ATTENTION = "statecache/cli/status/attention.py"

OPERATORS = {
    "closed gates told": Mutant(
        "status says nothing of a shard that nobody can write to",
        _ATTENTION,
        "        *_gates(found, sample.shards),\n",
        "",
        by="scenarios conditions",
    ),
    "bricked shards told": Mutant(
        "status says nothing of a stream that goes on beyond what its meta knows",
        _ATTENTION,
        '        *_beyond(history.get("foreign_entries", {})),\n',
        "",
        by="scenarios conditions",
    ),
    "full servers told": Mutant(
        "status says nothing of a Redis that refuses commits for want of memory or disk",
        _ATTENTION,
        "    yield from found.redis.problems\n",
        "",
        by="scenarios conditions",
    ),
    "hindered workers told": Mutant(
        "status says nothing of a worker that cannot flush",
        _ATTENTION,
        "        if worker.trouble or left:\n",
        "        if False:\n",
        by="scenarios conditions",
    ),
    "schema in part told": Mutant(
        "status says nothing of a schema that was restored in part",
        "statecache/cli/status/postgres.py",
        "    elif lack.parts:\n",
        "    elif False:\n",
        by="scenarios conditions",
    ),
    "schema in part found": Mutant(
        "doctor judges a schema that was restored in part well",
        "statecache/cli/doctor/postgres.py",
        "    elif facts.lacking.parts:\n",
        "    elif False:\n",
        by="scenarios in_part",
    ),
    "made anew": Mutant(
        "who knew a Postgres that was made anew does not ask Redis whether it belongs to that one by now",
        "statecache/core/postgres/tier.py",
        "        if self._ask_redis is not None and self._fitted(cluster):\n",
        "        if False:\n",
        by="scenarios made_anew",
    ),
    "dropped once": Mutant(
        "a parked entry is taken in while somebody drops it",
        "workers/statecache_workers/quarantine_release.py",
        'return BEING_DROPPED if parked.being_dropped else ""',
        'return ""',
        by="scenarios dropped_once",
    ),
    "losses told": Mutant(
        "status says nothing of positions that are gone",
        _ATTENTION,
        "[*reasons, *_lost(history), *_aside(found)]",
        "[*reasons, *_aside(found)]",
        by="scenarios conditions",
    ),
}
