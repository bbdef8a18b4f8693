"""Commits in Redis, how they are acknowledged, and what readers install."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

HOT = {
    "dedupe": Mutant(
        "a repeated commit is not known again",
        "statecache/lua/commit/commit.lua",
        "if seen then\n",
        "if false then\n",
    ),
    "fence": Mutant(
        "a commit does not ask whether this server opened the epoch",
        "statecache/lua/commit/commit.lua",
        "if not epoch or replid ~= server then\n",
        "if not epoch then\n",
    ),
    "absence": Mutant(
        "what was expected to be absent is overwritten",
        "statecache/core/view.py",
        "        return ABSENT\n",
        "        return BLIND\n",
        by="model,chaos",
    ),
    "rights": Mutant(
        "a commit writes whether or not it may write all of it",
        "statecache/lua/commit/commit.lua",
        "local may, lacking = redis.acl_check_cmd, nil\n",
        "local may, lacking = nil, nil\n",
        by="model",
    ),
    "copies": Mutant(
        "a change that is looked up is acknowledged at any level",
        "statecache/core/commit/repeats.py",
        "        if commit.durability in COPIED:\n",
        "        if False:\n",
        by="model",
    ),
    "used change_id": Mutant(
        "a change_id that stands for another value is answered as a repeat",
        "statecache/lua/commit/commit.lua",
        "          other = op and (op ~= ARGV[at + OP] or value ~= ARGV[at + VALUE])\n",
        "",
        by="model",
    ),
    "persist": Mutant(
        "a commit leaves a state its time to live",
        "statecache/lua/commit/commit.lua",
        "    call('PERSIST', redis_key)\n",
        "",
    ),
    "hydration token": Mutant(
        "a reader installs what it has read whatever happened meanwhile",
        "statecache/lua/read/hydrate_install.lua",
        "if standing and string.sub(standing, 1, #mine) == mine and redis.call('EXISTS', KEYS[i]) == 0 then",
        "if redis.call('EXISTS', KEYS[i]) == 0 then",
    ),
    "absence by watermark": Mutant(
        "a reader who found nothing installs that, whatever was flushed meanwhile",
        "statecache/lua/read/hydrate_absent.lua",
        "local reached = head[1] == ARGV[2] and tonumber(ARGV[3]) >= flushed\n",
        "local reached = head[1] == ARGV[2]\n",
        by="model,chaos",
    ),
    "absence of a copy": Mutant(
        "an older copy of Postgres has keys be absent in Redis",
        "statecache/lua/read/hydrate_absent.lua",
        "local reached = head[1] == ARGV[2] and tonumber(ARGV[3]) >= flushed\n",
        "local reached = head[1] == ARGV[2]\n",
        by="scenarios older_copy",
    ),
    "absence by epoch": Mutant(
        "a reader who found nothing installs that in a later epoch",
        "statecache/lua/read/hydrate_absent.lua",
        "local reached = head[1] == ARGV[2] and",
        "local reached =",
        by="scenarios absent_before",
    ),
    "absence of what is dirty": Mutant(
        "a dirty state that was removed by hand is absent",
        "statecache/lua/read/hydrate_absent.lua",
        "    if dirty and tonumber(dirty) > flushed then\n",
        "    if false then\n",
        by="scenarios absent_by_hand",
    ),
    "absence behind a gate": Mutant(
        "an absence is installed on a server that did not open the epoch",
        "statecache/lua/read/hydrate_absent.lua",
        "if not head[1] or head[2] ~= server then return { 'FENCED' } end\n",
        "",
        by="scenarios absent_behind_gate",
    ),
    "absence and tokens": Mutant(
        "an absence leaves the token of a reader who read before it",
        "statecache/lua/read/hydrate_absent.lua",
        "        if standing then redis.call('HDEL', KEYS[3], key) end -- of a reader who is slower\n",
        "",
        by="scenarios absent_and_token",
    ),
    "absence of what is lost": Mutant(
        "a key that has nothing but lost changes is absent like any other",
        "statecache/core/read/absences.py",
        "for (key,) in (*states, *lost))",
        "for (key,) in states)",
        by="scenarios absent_and_lost",
    ),
    "replicas counted": Mutant(
        "nobody counts how many replicas have acknowledged",
        "statecache/core/commit/durability_support.py",
        "        if reached < wanted:\n",
        "        if False:\n",
        by="roles replica_freeze",
    ),
    "too few replicas": Mutant(
        "a commit that too few replicas can acknowledge is written, and its copies are waited for in vain",
        "statecache/lua/commit/commit.lua",
        "  if tonumber(connected) < tonumber(replicas) then return { nonce, 'REPLICAS', connected, replicas } end\n",
        "",
        by="scenarios too_few",
    ),
    "end in the TLS handshake": Mutant(
        "a connection that ends within the TLS handshake is taken for a refused certificate",
        "statecache/_tls.py",
        "if not isinstance(origin, ssl.SSLError) or isinstance(origin, _PASSING):",
        "if not isinstance(origin, ssl.SSLError):",
        by="scenarios tls_handshake",
    ),
    "tls of Postgres": Mutant(
        "a Postgres whose TLS is refused is asked again until the time is up",
        "statecache/core/postgres/connection.py",
        "if not refused and over_tls:",
        "if False:",
        by="scenarios postgres_tls",
    ),
}
