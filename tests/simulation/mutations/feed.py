"""What readers of changes rely on."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

FEED = {
    "cursor ended": Mutant(
        "a reader goes on past what a restored Postgres has gone on without",
        "statecache/rules/feed.py",
        "    if head.start_n is not None and head.start_n < place.touched:\n",
        "    if False:\n",
        by="scenarios cursor_ended",
    ),
    "waited for": Mutant(
        "a reader goes back with a Postgres that is flushed again",
        "statecache/rules/feed.py",
        "    if head.flushed >= place.n:\n",
        "    if True:\n",
        by="scenarios waited_for",
    ),
    "late changes": Mutant(
        "readers that have passed what came out of quarantine are never given it",
        "statecache/sql/quarantine/quarantine_remove.sql",
        "FROM removed r JOIN {schema}.change c ON c.change_id = r.change_id AND c.shard = r.shard AND c.n = r.n\n",
        "FROM removed r JOIN {schema}.change c ON false\n",
        by="scenarios came_late",
    ),
    "part of a commit": Mutant(
        "a reader that stopped amid a commit's changes goes on behind it",
        "statecache/sql/feed/feed_changes.sql",
        " AND (n > from_n OR part > from_part)) c\n",
        " AND (n > from_n OR from_part = 0)) c\n",
        by="scenarios stopped_anywhere",
    ),
    "cut commit": Mutant(
        "a batch ends within a commit, and the next one begins behind it",
        "statecache/rules/feed.py",
        "        return FeedPlace(head.epoch, head.cut_at, 0, late)\n",
        "        return FeedPlace(head.epoch, head.cut_at + 1, 0, late)\n",
        by="scenarios stopped_anywhere",
    ),
    "held name": Mutant(
        "whoever lost a reader's name to another process stores where it stands all the same",
        "statecache/sql/migrations/0009_feed.sql",
        "    WHERE name = p_name AND holder = p_holder\n",
        "    WHERE name = p_name\n",
        by="scenarios lost_name",
    ),
    "handled": Mutant(
        "a named reader's change counts as handled when it is given",
        "statecache/_async/feed.py",
        "        elif issubclass(kind, Exception):  # the change that was given last may not have been handled\n"
        "            await self._end(None)\n",
        "        elif issubclass(kind, Exception):\n            await self.close()\n",
        by="scenarios given_again",
    ),
}
