"""Counters and collections: that each call counts once, exactly, and on what is there."""

from __future__ import annotations

from tests.simulation.mutations.mutant import Mutant

MODIFIERS = {
    "known by its digest": Mutant(
        "a repeat of a modifier is told from others by the value that it was to write, which it does not know",
        "statecache/lua/commit/commit.lua",
        "        if #ARGV[at + OP] > 6 then -- a modifier, of which its digest tells whether it is this one\n",
        "        if false then\n",
        by="model,chaos",
    ),
    "answer of then": Mutant(
        "a repeat of a modifier answers with what is there by now",
        "statecache/lua/commit/commit.lua",
        "= encoding or '', schema or '', value or ''\n",
        "= encoding or '', schema or '', call('HGET', KEYS[4 + i], 'value')\n",
        by="model,chaos",
    ),
    "counted once": Mutant(
        "a modifier that was looked up and not found is modified into whatever is there by then",
        "statecache/commit_protocol/commit.py",
        'if write.op != "check" and holds and change_id is not None:',
        'if write.op != "check" and holds and change_id is not None and write.modifier is None:',
        by="scenarios counted_late",
    ),
    "told from another": Mutant(
        "a change_id that is looked up is any modifier's",
        "statecache/core/commit/repeated_modifiers.py",
        "        if before is not None or not parent:\n",
        "        if False:\n",
        by="model",
    ),
    "exact sums": Mutant(
        "sums are those of Lua's numbers",
        "statecache/lua/modifiers.lua",
        "    local total = #before <= 21 and sum(before, argument)\n",
        "    local total = format('%.0f', before + argument)\n",
        by="model,chaos",
    ),
    "members are elements": Mutant(
        "what stands within a member is taken for a member",
        "statecache/lua/modifiers.lua",
        "    asked[member] = nil\n",
        "    for _, item in ipairs(items) do if find(member, item, 1, true) then asked[item] = nil end end\n",
        by="model,chaos",
    ),
    "counted from nothing": Mutant(
        "what has ended or is deleted is counted on",
        "statecache/lua/commit/commit.lua",
        "modified(modifier, ARGV[at + VALUE], stands and held[1])",
        "modified(modifier, ARGV[at + VALUE], state[3] ~= 'absent' and held[1])",
        by="chaos",
    ),
}
