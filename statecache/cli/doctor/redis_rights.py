"""Which commands in Redis an agent and a worker need, and which lack: what `config/users.acl` grants.

Two commands are named elsewhere: CONFIG GET where what it would show is missed, and WAITAOF, which not every server
has, beside the level `disk`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from statecache.cli.doctor.findings import Finding, error, note, warning
from statecache.core.redis.rights import CLIENT, FENCED, LOCKS, NEAR, TURNS, Rights, commands, rights
from statecache.redis_errors import answer_of, unknown_command
from statecache_workers.redis_rights import WORKER

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.keys import KeySpace

AGENT = (*LOCKS, "SSUBSCRIBE {events}", "INFO", "EVAL a 0", "WAIT 1 1")
"""What an agent needs beside what every connection's handshake asks for."""
_REFUSED = re.compile(r"run the '([a-z]+)' command")
"""How a server names the command that a user may not run."""
_NOTHING = Rights((), ())
_UNNAMED = "take no command away by rename-command"


class Use(NamedTuple):
    """Commands without which agents work all the same, and what that costs."""

    commands: Sequence[str]
    costs: str


USES = (
    Use(NEAR, "every read goes to the primary: agents keep nothing of what they have read"),
    Use(TURNS, "agents that update a state which others update too take no turns, and need more attempts"),
)


class Asked(NamedTuple):
    """What is in the way of what each client, an agent and a worker run, and of each of the `USES`."""

    client: Rights
    agent: Rights = _NOTHING
    worker: Rights = _NOTHING
    uses: Sequence[Rights] = ()


async def ask(link: Link, keys: KeySpace, fence: str, seconds: float) -> Asked:
    """Ask on every shard, or tell why no script may be run."""
    every = CLIENT + (FENCED if fence == "on" else ())
    needed = (every, AGENT, WORKER, *(use.commands for use in USES))
    asked = [commands(keys, some, range(keys.shards)) for some in needed]
    try:
        client, agent, worker, *uses = [await rights(link, some, seconds=seconds) for some in asked]
    except ResponseError as error:
        return Asked(Rights(asked[0], [_in_the_way(answer_of(error))]))
    return Asked(client, agent, worker, uses)


def _in_the_way(answer: str) -> str:
    """Return what keeps this user from running any script by that answer, as the script `rights` would tell it."""
    if lacking := unknown_command(answer):
        return f"!{lacking}"
    found = _REFUSED.search(answer)
    return found[1].upper() if found else "EVAL"


def findings(asked: Asked, lacking: Sequence[str], server: str, *, worker: bool) -> Iterator[Finding]:
    """Yield what the server lacks, beside what the handshake found to lack, and what this user may not do. Pure."""
    everywhere = list(dict.fromkeys([*lacking, *asked.client.unknown]))
    for some, costs, remedy in (
        (everywhere, "clients refuse it", "use Redis 7.0, Valkey 7.2 or newer, without rename-command"),
        (asked.worker.unknown, "workers and migrate refuse it", _UNNAMED),
        (asked.agent.unknown, "agents have no locks, or wait for fewer levels of durability", _UNNAMED),
    ):
        if what := [one for one in some if some is everywhere or one not in everywhere]:
            yield error("redis", f"{server} lacks {', '.join(what)}", costs, remedy)
    grant = "ACL SETUSER <user> +<command> … ~<prefix>:{* &<prefix>:{*"
    said = {"", asked.client.refused}
    if asked.client.refused:
        yield error("redis", f"this user {asked.client.refused}", "clients and workers refuse to work", grant)
    agent, flusher = ("an agent", asked.agent.refused, not worker), ("a worker", asked.worker.refused, worker)
    for who, refused, insisted in (flusher, agent) if worker else (agent, flusher):
        if refused in said:
            continue
        if insisted:
            yield error("redis", f"this user {refused}", f"it cannot be {who}'s", grant)
        else:
            yield note("redis", f"this user {refused}", f"it cannot be {who}'s; others need none of it")
        said.add(refused)
    for use, found in zip(USES, asked.uses, strict=False):
        if what := [one for one in found.unknown if one not in everywhere]:
            yield warning("redis", f"{server} lacks {', '.join(what)}", use.costs, _UNNAMED)
        if found.refused and not (worker or asked.client.refused):
            yield warning("redis", f"this user {found.refused}", use.costs, grant)
