"""What a Redis user may not do of what is needed, told so that it can be granted: commands, patterns of keys, channels.

The handshake asks about the first shard and the last one, with no exchange of its own; only where something is refused,
all shards are asked about, or so many of them as fit into one exchange. `doctor` asks about every one.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from statecache.keys import parts_of_name, pattern
from statecache.lua import script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace

CLIENT = (
    "HMGET {meta} a", "HGET {meta} a", "HSET {meta} a b", "HINCRBY {meta} a 1", "XADD {changes} * a b",
    "XRANGE {changes} - +", "XREVRANGE {changes} + -", "XINFO STREAM {changes}", "XDEL {changes} 1-1",
    "ZADD {unflushed} 1 a", "ZSCORE {unflushed} a", "ZCARD {unflushed}", "ZRANGE {unflushed} 0 -1",
    "ZREM {unflushed} a", "HLEN {hydrating}", "DEL {hydrating}", "HDEL {hydrating} a", "HSET {state} a b",
    "HEXISTS {state} a", "PERSIST {state}", "PEXPIRE {state} 1", "EXISTS {state}", "TYPE {state}", "UNLINK {state}",
    "WATCH {state}", "UNWATCH", "MULTI", "EXEC", "EVALSHA a 0", "TIME",
)  # fmt: skip
"""What every client runs, by itself or in scripts; none of it may be refused in the middle of a script."""
FENCED = ("INFO replication",)
"""What is needed besides with a fence."""
ADOPTING = ("SCAN 0", "HGETALL {state}")
"""What is needed besides to adopt a Redis that holds no data set of ours."""
LOCKS = (
    "HMGET {leases} a", "HGET {leases} a", "HSET {leases} a b", "HDEL {leases} a", "HMGET {waiters} a",
    "HSET {waiters} a b", "HDEL {waiters} a", "SSUBSCRIBE {calling}", "SPUBLISH {calling} x",
)  # fmt: skip
"""What locks need besides."""
NEAR = ("HELLO 3", "CLIENT TRACKING ON", "CLIENT CACHING YES")
"""What the near cache needs besides. No rule refuses HELLO, but a server may lack it."""
TURNS = (
    "HGET {turn} a", "HSET {turn} a b", "PEXPIRE {turn} 1", "EXISTS {calls}", "DEL {calls}", "PEXPIRE {calls} 1",
    "RPUSH {calls} a", "BLMPOP 1 0 LEFT",
)  # fmt: skip
"""What turns need besides: who updates a state that others update too waits to be called.

BLMPOP names no key: the script asks again, without arguments, for what is refused on its keys, and of a command that
counts its keys Valkey 9.1 crashes at that.
"""
SHARDS_MAX = 64
"""About how many shards one exchange asks, outside of `doctor`."""
_COMMANDS_MAX = 4_000
_CHANNELS = ("SPUBLISH", "SSUBSCRIBE")
_CONTAINERS = ("CLIENT", "XINFO")
"""Commands of which the second word is a part of the name."""


class Rights(NamedTuple):
    """What was asked for, and what is in the way, as the script `rights` tells it."""

    asked: Sequence[str]
    answer: Sequence[str]

    @property
    def unknown(self) -> list[str]:
        """What this server lacks."""
        return list(dict.fromkeys(one[1:] for one in self.answer if one.startswith("!")))

    @property
    def refused(self) -> str:
        """What this user may not do, as half a sentence; empty where everything asked for may be done."""
        commands = {_name_of(one) for one in self.answer if one[0] not in "!~&"}
        parts = [f"run {', '.join(sorted(commands))}"] if commands else []
        for mark, what in (("~", "keys"), ("&", "channels")):
            if patterns := self._patterns(mark):
                parts.append(f"use the {what} {', '.join(patterns)}")
        return f"may not {' or '.join(parts)}" if parts else ""

    def _patterns(self, mark: str) -> list[str]:
        """Return what to grant: patterns of names, each with the commands that were refused on these names.

        Where no kind of name is without a refusal, one pattern stands for all of them.
        """
        asked = _named(one for one in self.asked if (one.split()[0] in _CHANNELS) == (mark == "&"))
        every = {shard for uses in asked.values() for shard, _ in uses}
        alike: dict[tuple[str, frozenset[str]], dict[str, set[str]]] = {}
        for (prefix, kind), uses in _named(one[1:] for one in self.answer if one.startswith(mark)).items():
            shards = frozenset(shard for shard, _ in uses)
            alike.setdefault((prefix, shards), {})[kind] = {command for _, command in uses}
        told = []
        for (prefix, shards), kinds in alike.items():
            if mark == "~" and len(kinds) == len(asked):
                some, all_of_them = set().union(*kinds.values()), {use[1] for uses in asked.values() for use in uses}
                kinds = {":*": set() if some == all_of_them else some}
            tag = "*" if shards == every else min(shards, key=int)
            more = f" and of {len(shards) - 1} shards more" if tag != "*" and len(shards) > 1 else ""
            told += [f"{mark}{pattern(prefix, tag, kind)}{_in_brackets(which)}{more}" for kind, which in kinds.items()]
        return told


def _name_of(command: str) -> str:
    words = command.split()
    return " ".join(words[: 2 if words[0] in _CONTAINERS else 1])


def _in_brackets(some: set[str]) -> str:
    first = sorted(some)[:4]
    return f" ({', '.join(first)}{', …' if len(some) > 4 else ''})" if first else ""


def _named(commands: Iterable[str]) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Return the kinds of names in commands, as what is before and behind the shard, with shards and commands."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for one in commands:
        command, *words = one.split()
        for name in filter(None, map(parts_of_name, words)):
            prefix, shard, kind = name
            found.setdefault((prefix, kind), set()).add((shard, command))
    return found


def commands(keys: KeySpace, spelled: Sequence[str], shards: Iterable[int]) -> list[str]:
    """Return the commands on these shards' keys, in order, each once."""
    found: dict[str, None] = {}
    for shard in shards:
        turn, calls = (stem + "_/handshake" for stem in keys.turn_stems(shard))
        names = {
            "meta": keys.meta(shard), "changes": keys.changes(shard), "unflushed": keys.unflushed(shard),
            "hydrating": keys.hydrating(shard), "leases": keys.leases(shard), "waiters": keys.waiters(shard),
            "events": keys.events(shard), "calling": keys.events(shard, "client"), "bell": keys.bell(),
            "state": keys.state_stem(shard) + "_/handshake", "turn": turn, "calls": calls,
        }  # fmt: skip
        found |= dict.fromkeys(one.format_map(names) for one in spelled)
    return list(found)


def first_and_last(keys: KeySpace) -> list[int]:
    """Return the first shard and the last one."""
    return sorted({0, keys.shards - 1})


def shards_to_ask(keys: KeySpace) -> list[int]:
    """Return all shards, or as many of them as one exchange can ask about."""
    return sorted({*range(0, keys.shards, max(1, -(-keys.shards // SHARDS_MAX))), keys.shards - 1})


async def rights(link: Link, asked: Sequence[str], *, seconds: float) -> Rights:
    """Ask which of these commands may be run; an error reply, as to one who may run no script, is raised."""
    answer: list[str] = []
    for some in _in_parts(asked):
        reply = await link.script(script("rights"), [], [";".join(some)], seconds=seconds)
        answer += [part.decode("utf-8", "replace") for part in reply]
    return Rights(asked, answer)


def _in_parts(asked: Sequence[str]) -> Iterator[list[str]]:
    left = iter(asked)
    while some := list(islice(left, _COMMANDS_MAX)):
        yield some
