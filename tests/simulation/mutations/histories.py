"""What is read of history, and where the verbs lead that go back in it."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

HISTORIES = {
    "redo counted": Mutant(
        "a redo behind a redo brings back what that has brought back",
        "statecache/rules/undoing.py",
        "            taken_back += 1\n",
        "            pass\n",
        by="history",
    ),
    "undo shown": Mutant(
        "an undo behind an undo goes to where that came from",
        "statecache/rules/undoing.py",
        '    before = yield Question("before", shown(place, reason, whole=whole))\n',
        '    before = yield Question("before", shown(place, "", whole=whole))\n',
        by="history",
    ),
    "deletes of nothing passed": Mutant(
        "an undo goes no further than the delete that a state was created over which has ended",
        "statecache/core/history/restoring.py",
        '            if version.op == "set" or record.exists:\n',
        "            if True:\n",
        by="scenarios undone_past",
    ),
    "moments of groups": Mutant(
        "a group is given at a moment as it never was, for a clock went back",
        "statecache/core/history/targets.py",
        "    if point.time is None or not found:\n",
        "    if True:\n",
        by="scenarios moment_of_a_group",
    ),
    "value held by a state": Mutant(
        "a value that a state alone holds is passed over as what is nearest",
        "statecache/sql/history/history_nearest.sql",
        " OR EXISTS (\n        SELECT FROM {schema}.state s"
        " WHERE s.key = c.key AND s.version = c.version AND s.op = 'set'))",
        ")",
        by="history",
    ),
    "moment included": Mutant(
        "a moment does not include what was written at it",
        "statecache/sql/history/history_at.sql",
        "h.at <= %(time)s",
        "h.at < %(time)s",
        by="history",
    ),
    "keyframe of a range": Mutant(
        "a range of versions is read as if each were built on the one before the last",
        "statecache/core/history/values.py",
        "before = found.get(stored.version - 1, _NOTHING)",
        "before = found.get(stored.version - 2, _NOTHING)",
        by="history",
    ),
    "origins in a row": Mutant(
        "what branched from one another in a row is read together as if each stood behind its origin",
        "statecache/core/history/values.py",
        "            bases[place] = _base(place, chain, base_of(origin))\n",
        "            bases[place] = _base(place, chain, _NOTHING if origin is None else bases.get(origin, _NOTHING))\n",
        by="scenarios row",
    ),
    "branch read from its origin": Mutant(
        "an erasure leaves branches to be read from what it took away",
        "statecache/core/history/erasing.py",
        '            await _fetch(runtime, "detach_branch", asked, seconds)\n',
        "            del asked\n",
        by="history",
    ),
    "damaged change given": Mutant(
        "a reader of changes is given one that was edited by hand",
        "statecache/core/feed/feed.py",
        'return [_compared(row, "the value") if row[17] else row for row in whole]',
        "return whole",
        by="scenarios damaged_feed",
    ),
    "damaged row listed": Mutant(
        "a listing of versions passes over rows that do not fit their hashes",
        "statecache/core/history/reader.py",
        "proven_until_damaged(rows) if proven else",
        "proven_until_damaged(rows) if False else",
        by="scenarios damaged_listing",
    ),
    "current behind what is parked": Mutant(
        "a group is branched as it was before a version that lies in quarantine",
        "statecache/core/history/reader.py",
        "        if not gaps:\n",
        "        if point == Point() or not gaps:\n",
        by="scenarios current_in_quarantine",
    ),
    "origin that came later": Mutant(
        "a branch that was flushed before its origin is merged from an older version",
        "statecache/core/history/branches.py",
        "        if unknown:\n",
        "        if False:\n",
        by="scenarios origin_that_came_later",
    ),
    "head that vouches": Mutant(
        "a head that was deleted or rolled back proves that a checkpoint is new",
        "statecache/adapters/langgraph/documents.py",
        "return head is not None and _is_own(head) and",
        "return head is not None and",
        by="scenarios head_that_vouches",
    ),
}
