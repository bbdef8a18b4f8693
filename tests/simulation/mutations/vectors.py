"""Searches by nearness: what an index does not show yet, and what it shows no more."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

VECTORS = {
    "vectors unflushed": Mutant(
        "a search by an index does not find what is in Redis alone",
        "statecache/core/read/listing.py",
        "        return dirty | await self._overlaid(rows, overlay.records, seconds, values=True)\n",
        "        return await self._overlaid(rows, overlay.records, seconds, values=True)\n",
        by="scenarios vectors_written",
    ),
    "vectors waiting": Mutant(
        "a search by an index does not find what waits to be indexed",
        "statecache/sql/read/list_nearest.sql",
        "SELECT key FROM near UNION SELECT key FROM waiting",
        "SELECT key FROM near",
        by="scenarios vectors_written",
    ),
    "vectors put back": Mutant(
        "a search by an index takes a Postgres that was put back for all that there is",
        "statecache/core/read/nearest.py",
        "            if overlay.lacking(watermarks):\n",
        "            if False:\n",
        by="scenarios vectors_put_back",
    ),
    "vectors of the gone": Mutant(
        "the vectors of what was erased stay in the index until a worker comes to them",
        "statecache/sql/migrations/0013_vectors.sql",
        "    IF TG_OP = 'DELETE' OR NEW.op = 'delete' THEN\n",
        "    IF false THEN\n",
        by="scenarios vectors_gone",
    ),
    "vectors held up": Mutant(
        "a flush waits for a worker that indexes the same state",
        "statecache/sql/migrations/0013_vectors.sql",
        "WHERE key = $1 FOR UPDATE SKIP LOCKED)",
        "WHERE key = $1)",
        by="scenarios vectors_at_it",
    ),
    "vectors of one": Mutant(
        "a search by an index ends with the first vectors, although all are of one state",
        "statecache/core/read/nearest.py",
        "            if given < asked or asked >= _ASKED_MAX or last >= 1.0 - float(farthest) + _ROUNDING:\n",
        "            if True:\n",
        by="scenarios vectors_of_one",
    ),
    "vectors dropped": Mutant(
        "a search goes on to believe in an index that was dropped, and finds nothing",
        "statecache/core/read/nearest.py",
        "            if [_Index(*row) for row in there] != [index]:\n",
        "            if False:\n",
        by="scenarios vectors_dropped",
    ),
    "vectors beside": Mutant(
        "who drops an index of vectors takes the triggers of one that was made since",
        "statecache/sql/migrations/0017_vectors_always.sql",
        "       OR NOT p_watched AND (NOT v_there OR EXISTS (\n"
        "           SELECT FROM {schema}.vector_index i WHERE i.namespace = p_namespace)) THEN\n",
        "       OR NOT p_watched AND NOT v_there THEN\n",
        by="scenarios vectors_beside",
    ),
    "vectors cut off": Mutant(
        "an index of vectors whose making was cut off can only be dropped",
        "statecache/core/postgres/vector_indexes.py",
        '            if (namespace, member, dims, False) not in [row[:4] for row in await run("vector_list")]:\n',
        "            if True:\n",
        by="scenarios vectors_cut_off",
    ),
    "vectors unwatched": Mutant(
        "an index of vectors that nothing watches is searched",
        "statecache/sql/migrations/0014_vectors_watched.sql",
        "    WHERE {schema}.vectors_watched(i.namespace)\n",
        "",
        by="scenarios vectors_unwatched",
    ),
}
