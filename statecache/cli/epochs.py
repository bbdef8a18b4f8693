"""`statecache epoch adopt`: opening shards on an operator's word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from statecache.cli.exits import OK
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, operator, settings_of
from statecache.cli.screen import counted, print_json, say
from statecache.errors import RedisUnavailable, Unavailable, UsageError
from statecache.keys import KeySpace
from statecache.rules.clusters import is_unrelated, unrelated
from statecache.rules.looks import Look, ShardRow
from statecache.rules.replids import adopt_options
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.core.epoch.gate import Opened
    from statecache.settings import Settings


def numbers(words: Sequence[str], shards: int) -> list[int]:
    """Return shard numbers from words, or all for `all`; raise UsageError for anything else."""
    if list(words) == ["all"]:
        return list(range(shards))
    found = []
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) < shards):
            raise UsageError(f"{word!r} is not a shard", hint=f"Give numbers from 0 to {shards - 1}, or all.")
        found.append(int(word))
    return sorted(set(found))


async def adopt(
    settings: Settings, shards: Sequence[int], *, by: str, given_up: Sequence[str], meant: str | None = None
) -> list[Opened]:
    """Open the shards whose gates are closed, in the place of the servers `given_up`, and return what was opened.

    The pin is not compared first: the one in a Redis that has to be adopted may be another lineage's. Raises UsageError
    where the URL leads to another server than the one that is `meant`, and what refuses all but a primary.
    """
    from statecache.core.epoch.gate import Gate, Vouched
    from statecache.core.postgres.migrate import replid_of
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier

    keys = KeySpace(settings.prefix, settings.shards)
    session = await PostgresTier(settings, keys).session()
    try:
        link = await RedisTier(settings, keys).unpinned_link()
        try:
            if meant is not None and (found := await replid_of(link, settings.timeout_s)) != meant:
                raise UsageError(
                    f"{masked(settings.redis_url)} leads to {found}, not to {meant}",
                    hint="Name a URL that leads to that server alone. One that was a replica until now, or began anew, "
                    "has another replid since: what refuses it says which.",
                )
            gate = Gate(settings, keys, by=by, authority="operator", vouched=Vouched(given_up))
            return await gate.open(link, session.connection, shards)
        finally:
            await link.close()
    finally:
        await session.close()


async def options_named(settings: Settings, shards: Sequence[int]) -> str:
    """Return the options that are to be given: the servers that Postgres names for these shards, and this Redis.

    Where Postgres names none, this Redis was its own. Raises what `adopt` would, but for a Redis that is away.
    """
    from statecache.cli.doctor.redis import looks_of
    from statecache.core.postgres.migrate import replid_of
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier

    keys = KeySpace(settings.prefix, settings.shards)
    tier = PostgresTier(settings, keys)
    try:
        found = await tier.fetch("shards", {"shards": list(shards)}, seconds=settings.timeout_s)
    finally:
        await tier.pool.close()
    rows = [ShardRow(shard=row[0], epoch=row[1], replid=row[2], flushed=row[3], cluster=row[4]) for row in found]
    named, server, looks = sorted({row.replid for row in rows} - {""}), "", dict[int, Look]()
    try:
        link = await RedisTier(settings, keys).unpinned_link()
        try:
            server = await replid_of(link, settings.timeout_s)
            looks = await looks_of(link, keys, settings.fence, settings.timeout_s)
        finally:
            await link.close()
    except RedisUnavailable as error:
        if error.reason == "role" or not named:
            raise
    for row in rows:
        look = looks.get(row.shard)
        if look is not None and is_unrelated(row, look, row.cluster):
            raise Unavailable("epoch", detail=unrelated(look.pin.cluster, row.cluster))
    return adopt_options(named or [server], server)


def adopt_command(
    shards: Annotated[list[str], typer.Argument(metavar="SHARD…|all", help="Shard numbers, or all.")],
    given_up: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="REPLID", help="The server that this Redis replaces; may be given again."),
    ] = None,
    meant: Annotated[
        str | None, typer.Option("--to", metavar="REPLID", help="This Redis: nothing is done where it is another one.")
    ] = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Declare this Redis the primary of shards that nobody else may open, and open them.

    The server that is given up is named by its replication id, which stands in the refusal of workers and agents, and
    is told where --from is left out: the one that Postgres names, or this Redis' own where that was made anew. The
    refusal names this Redis too: behind a proxy the URL may lead to another one by now, which --to refuses. What this
    Redis holds that is not the current lineage's goes to `conflict`; what it lacks is loaded from Postgres. A Redis
    that belongs to another Postgres' cluster is refused, unless this one has had no epoch yet, as a database made anew:
    then what it holds is all there is. So are a replica, and a node of a Redis Cluster.

    \b
    Examples:
      statecache epoch adopt all --from 0f9e1b0c… --to 7d02ce55…
      statecache epoch adopt 7 12 --from 0f9e1b0c… --to 7d02ce55…
    """
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    asked = numbers(shards, settings.shards)
    if not given_up:
        try:
            named = asyncio.run(options_named(settings, asked))
        except Unavailable as error:
            if error.reason in ("role", "epoch"):
                raise
            named = "--from REPLID --to REPLID"
        raise UsageError(
            f"this declares {masked(settings.redis_url)} the primary of {counted(len(asked), 'shard')}, whatever "
            f"other Redis still serves agents of {masked(settings.postgres_url)}",
            hint=f"Name the server that is given up: `statecache epoch adopt {' '.join(shards)} {named}`.",
        )
    opened = asyncio.run(adopt(settings, asked, by=f"operator {operator()}", given_up=given_up, meant=meant))
    if as_json:
        print_json({"opened": opened})
        return OK
    for one in opened:
        found = f"{counted(one.dropped, 'state')} dropped, {counted(one.conflicts, 'conflict')}"
        say(f"shard {one.shard}: epoch {one.epoch}, {found}")
    if not opened:
        print("nothing to do: these shards are open")
    return OK
