"""States that end: who decides that, and who heeds it."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant, Piece

EXPIRY = {
    "ended as asked": Mutant(
        "a repeat that asks for another end is told that end, which is not stored",
        "statecache/lua/ends_alike.lua",
        "  if not form then return asked == stored end\n",
        "  if true then return true end\n",
        by="scenarios another_end",
    ),
    "ended as asked, long ago": Mutant(
        "so is one that was looked up in the stream or in Postgres",
        "statecache/rules/outcomes.py",
        "            same = content_of(write.op, write.value, encoding) == found\n",
        "            same = content_of(write.op, write.value, found.encoding) == found\n",
        by="scenarios another_end",
    ),
    "ended for writes": Mutant(
        "a write takes a state for alive whose end has come",
        "statecache/lua/commit/commit.lua",
        "    if ends and now[1] * 1000 + now[2] / 1000 >= tonumber(ends) then state[3] = 'expired' end\n",
        "",
        by="chaos",
    ),
    "ended for reads": Mutant(
        "a read finds a state whose end has come",
        "statecache/core/redis/server_clock.py",
        "self.server_ms(boottime() if at is None else at) < until",
        "True",
        by="chaos",
    ),
    "not ended after all": Mutant(
        "a worker deletes what Postgres takes for ended",
        "statecache/core/commit/endings.py",
        "expected=EXPIRED)",
        'expected="*")',
        by="chaos",
    ),
    "ended while in doubt": Mutant(
        "a repeated delete takes what has ended meanwhile",
        "statecache/commit_protocol/commit.py",
        'aged = "" if write.expected == PRESENT else AGED',
        "aged = AGED",
        by="chaos",
        also=(
            Piece(
                "statecache/core/commit/repeats.py",
                'return b"expired" if op == b"set" and until is not None and until <= now_ms else op\n',
                "return op\n",
            ),
        ),
    ),
    "left behind": Mutant(
        "no worker deletes what has ended",
        "workers/statecache_workers/worker.py",
        "        self.expiry.ask(self._served())\n",
        "        self._served()\n",
        by="chaos",
    ),
}
