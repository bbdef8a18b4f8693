"""What is kept of history: who lets values go, who packs them, and who says that they are whole."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

_PRUNING = "workers/statecache_workers/pruning.py"
_CHAINS = "statecache/rules/chains.py"
_READER = "statecache/core/history/reader.py"
_ERASING = "statecache/core/history/erasing.py"

RETENTION = {
    "pins heeded": Mutant(
        "a prune lets values go that checkpoints name",
        _PRUNING,
        "kept = {row[2] for row in found if row[10] or _pinned(pins, row)}",
        "kept = {row[2] for row in found if row[10]}",
        by="scenarios pinned",
    ),
    "origins kept": Mutant(
        "a prune lets values go that branches are read from",
        _PRUNING,
        "kept = {row[2] for row in found if row[10] or _pinned(pins, row)}",
        "kept = {row[2] for row in found if _pinned(pins, row)}",
        by="scenarios origins",
    ),
    "moved keyframes told": Mutant(
        "a flusher goes on building on a keyframe that a prune has moved",
        "workers/statecache_workers/tip_cache.py",
        "        self._moved[shard] = times\n",
        "        del shard, times\n",
        by="scenarios moved",
    ),
    "grown runs": Mutant(
        "a delta that is flushed while its keyframe moves is read from the old one",
        _PRUNING,
        'Call("prune_moved", {"shard": shard}), Call("prune_grown", columns))',
        'Call("prune_moved", {"shard": shard}), Call("pack_pending", {"shards": [-1]}))',
        by="scenarios moved",
    ),
    "ages by Redis' clock": Mutant(
        "with Redis' clock behind that of Postgres, values go that were replaced a moment ago",
        "statecache/sql/retention/prune_page.sql",
        " AND next_at < %(redis_now)s::timestamptz - %(age)s::interval",
        "",
        by="scenarios both_clocks",
    ),
    "ages by Postgres' clock": Mutant(
        "with Redis' clock ahead, values go of which Postgres says that they are not as old",
        "statecache/sql/retention/prune_page.sql",
        "next_at < now() - %(age)s::interval AND ",
        "",
        by="scenarios both_clocks",
    ),
    "packed first": Mutant(
        "a prune takes a shard of which some changes are still to be packed",
        "statecache/sql/retention/prune_page.sql",
        " AND w.hashed >= w.flushed\n",
        "\n",
        by="scenarios unpacked",
    ),
    "packed whole": Mutant(
        "packing passes what came out of quarantine behind the page that it read",
        "workers/statecache_workers/packing.py",
        "if found != (len(packed), len(packed), 1):",
        "if found[0] != len(packed):",
        by="scenarios packed",
    ),
    "made ahead behind what is there": Mutant(
        "a value is a delta to what is read from a keyframe that was moved meanwhile",
        "workers/statecache_workers/values_ahead.py",
        "if made is not None and made.behind is parent:",
        "if made is not None:",
        by="scenarios made_ahead",
    ),
    "latest kept for pins": Mutant(
        "of a namespace that keeps the latest alone, what a checkpoint names is lost",
        "workers/statecache_workers/history_writing.py",
        "                pins.append(pin)\n",
        "",
        by="scenarios latest",
    ),
    "hashes verified": Mutant(
        "verify does not compare hashes",
        _CHAINS,
        "        if row.digest is None or self._torn:\n",
        "        if True:\n",
        by="scenarios verified",
    ),
    "missing rows verified": Mutant(
        "verify says nothing of rows that are missing",
        _CHAINS,
        "        if excused:\n",
        "        if excused or missing:\n",
        by="scenarios verified",
    ),
    "missing versions of a key": Mutant(
        "a key goes back, or branches, to what was before versions that are lost, as if it had held that",
        _READER,
        "        if gap is not None and (point",
        "        if None and (point",
        by="scenarios gone_back_amid_a_gap",
    ),
    "missing versions in a group": Mutant(
        "a group goes back, or branches, to what was before versions that are lost, as if it had held that",
        _READER,
        "            await self._refuse_unknown(point, [] if as_bound else [*gaps.values()], end)\n",
        "",
        by="scenarios gone_back_amid_a_gap",
    ),
    "known before what is missing": Mutant(
        "nothing can be gone back to any more of a key of which versions were lost later",
        "statecache/sql/history/history_gaps.sql",
        "coalesce(least(e.lost, e.parked), e.behind + 1)",
        "e.behind + 1",
        by="scenarios known_before_a_gap",
    ),
    "lost positions": Mutant(
        "a lost position is taken for that of the change which was given its number later",
        _READER,
        "seen.cut < point.n",
        "False",
        by="scenarios lost_position",
    ),
    "moments to come": Mutant(
        "what is there now is given for a moment that is yet to come",
        _READER,
        "        while point.time is not None:\n",
        "        while False:\n",
        by="scenarios yet_to_come",
    ),
    "positions to come": Mutant(
        "what is there now is given for a position that is yet to come",
        _READER,
        "tail.newest < point.n < VERSION_MAX",
        "False",
        by="scenarios yet_to_come",
    ),
    "ended at a moment": Mutant(
        "a key is shown, or goes back to, what had ended by the moment that is asked for",
        "statecache/rules/versions.py",
        "return version if ends is None or time is None or time < ends else",
        "return version if True else",
        by="scenarios ended_at_a_moment",
    ),
    "checkpoint brought back": Mutant(
        "a checkpoint that is brought back names another position than before",
        "statecache/core/history/restoring.py",
        "written_again(stored, version.position) if",
        "stored if",
        by="scenarios checkpoint_brought_back",
    ),
    "branches detached": Mutant(
        "an erasure leaves a branch without the value that it is read from",
        "statecache/sql/migrations/0012_retention.sql",
        "WHERE b.key <> ALL (p_keys) AND get_byte(o.packed, 0) = 111) THEN",
        "WHERE b.key <> ALL (p_keys) AND false) THEN",
        by="scenarios detached",
    ),
    "stream erased": Mutant(
        "an erasure leaves in the stream what it was about",
        _ERASING,
        "await _take_out(runtime, subject, deleted, places, max(end - monotonic(), 0.001))",
        'places["stream"] = (0, 0)',
        by="scenarios erased",
    ),
    "unflushed erased": Mutant(
        "an erasure says of what only Redis knows yet that there was never anything",
        "statecache/core/history/subjects.py",
        '    keys |= {key for what, key, _, _ in rows if what == "key"}\n',
        '    keys = {key for what, key, _, _ in rows if what == "key"}\n',
        by="scenarios erased_unflushed",
    ),
    "proved first": Mutant(
        "a prune commits what it has not read again",
        _PRUNING,
        "            await self._prove(transaction, [one for one in changing if one.kept], origins)\n",
        "",
        by="scenarios proved",
    ),
    "policy heeded": Mutant(
        "a pass goes on with what a policy let go that has been replaced",
        "workers/statecache_workers/prune_passes.py",
        "            if kept != retention:\n",
        "            if kept is None:\n",
        by="scenarios replaced",
    ),
}
