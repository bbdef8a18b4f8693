"""Locks and steps."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

AGENTS = {
    "claim renewed": Mutant(
        "the claim of a step that lasts is not renewed",
        "statecache/core/step/claims.py",
        "            if due:\n",
        "            if False:\n",
        by="steps",
    ),
    "claim taken again": Mutant(
        "a claim that was lost in an outage is not taken again",
        "statecache/core/step/claims.py",
        'self._spelled.call("take", one, link, seconds)',
        'self._spelled.call("renew", one, link, seconds)',
        by="steps",
    ),
    "claim watched": Mutant(
        "whoever finds the claim of a step that was begun free takes its agent for dead at once",
        "statecache/core/step/claims.py",
        "        elif begun and not (watched and self._watch.saw(monotonic() - now)):\n",
        "        elif False:\n",
        by="steps",
    ),
    "claim of a waiter": Mutant(
        "whoever waits for a step keeps the claim that it got, and its agent cannot take it again",
        "statecache/core/step/claims.py",
        "            await self._claims.give_back(holding)\n            if not watched:\n",
        "            if not watched:\n",
        by="steps",
    ),
    "roll of an epoch": Mutant(
        "what a client knows of a key's steps is believed after a failover too",
        "statecache/lua/novelty.lua",
        "ARGV[at + ASSUME_NEW] == 'e' .. epoch\n",
        "string.sub(ARGV[at + ASSUME_NEW], 1, 1) == 'e'\n",
        by="scenarios replayed",
    ),
    "lock": Mutant(
        "a lock is given away while somebody has it",
        "statecache/lua/lock/lease.lua",
        "if not lease or until_ms <= now then\n",
        "if true then lease = nil\n",
        by="locks worker_kill",
    ),
    "nobody's lease": Mutant(
        "a lease whose holder was interrupted before he had it is renewed for ever",
        "statecache/core/lock/leases.py",
        "                self._held[holding.request] = holding\n",
        "                self._held[holding.request] = holding\n"
        "                self.__dict__.setdefault('kept', []).append(holding)\n",
        by="scenarios lease_of_nobody",
    ),
    "block gone": Mutant(
        "a lease is renewed as long as its name stands, although its block was left by an interruption",
        "statecache/_sync/verbs.py",
        "        lease._holding.block = ref(self)\n",
        "",
        by="scenarios block_gone",
    ),
    "call cut off": Mutant(
        "a call that was interrupted at its edge is under way for ever",
        "statecache/commit_protocol/in_flight.py",
        "= WeakValueDictionary()",
        "= {}  # type: ignore[assignment]",
        by="scenarios call_cut_off",
    ),
    "nobody's claim": Mutant(
        "a claim whose taker was interrupted before he had it is renewed for ever",
        "statecache/core/step/claims.py",
        "            self._held[request] = holding\n",
        "            self._held[request] = holding\n            self.__dict__.setdefault('kept', []).append(holding)\n",
        by="scenarios claim_of_nobody",
    ),
    "fencing token": Mutant(
        "a commit does not ask whether its lease still stands",
        "statecache/lua/commit/commit.lua",
        "    if stands ~= token then return { nonce, 'STALE', lock, token, holder or '' } end\n",
        "",
        by="locks redis_hold writer_pause",
    ),
    "holder's reads": Mutant(
        "the holder of a lock reads what its process keeps near",
        "statecache/core/lock/lease_view.py",
        '            self.reads = "primary"\n',
        "            pass\n",
        by="locks tracked_late",
    ),
    "result kept": Mutant(
        "the result of a step whose lease was lost while it ran is thrown away",
        "statecache/core/step/call.py",
        "        locks = self._view.unguarded(write.key)\n",
        "        locks = self._locks([write])\n",
        by="locks step_leased",
    ),
    "pool for all": Mutant(
        "transactions may hold all connections, so that what is called inside of them gets none",
        "statecache/core/pool.py",
        "        self._holds_max = max(1, size // 2)\n",
        "        self._holds_max = size\n",
        by="model",
    ),
    "policy kept": Mutant(
        "locks that a namespace enforces are kept by those alone who know that",
        "statecache/lua/commit/commit.lua",
        "  if enforced and not names_locks then return { nonce, 'POLICY', 'enforced' } end\n",
        "",
        by="model",
    ),
    "policy of an empty redis": Mutant(
        "a policy is recorded before every shard is known to be open on the Redis that is named",
        "statecache/core/lock/policies.py",
        "            if revision < 0:\n                await self._opener.open(shard, end=end)\n        copies",
        "            del shard, revision\n        copies",
        by="scenarios policy_elsewhere",
    ),
    "policy again": Mutant(
        "a view that has seen its policy recorded once does not record it again where both tiers forgot it",
        "statecache/core/lock/policies.py",
        "if seen in self._recorded or",
        "if namespace in {one[0] for one in self._recorded} or",
        by="scenarios policy_again",
    ),
    "newer schema": Mutant(
        "an older release writes over what it has not read of a newer one's value",
        "statecache/core/view.py",
        "        if record.exists and record.schema not in codec.known:\n",
        "        if False:\n",
        by="model",
    ),
    "typed losses": Mutant(
        "what a subclass adds inside of a container is left out when it is stored",
        "statecache/value_loss.py",
        "    if typed and kind is not gets and is_record(kind) and is_record(gets):\n",
        "    if False:\n",
        by="model",
    ),
}
