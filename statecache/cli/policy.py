"""`statecache policy`: how the locks of namespaces are kept, by all who write to them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, Yes, one_of, operator, settings_of
from statecache.cli.screen import plain, print_json, print_table
from statecache.errors import UsageError
from statecache.keys import checked_namespace
from statecache.model import LOCKINGS, Locking
from statecache.settings import Settings


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded policy of a namespace."""

    namespace: str
    locking: str
    changed_by: str
    changed_at: datetime


async def recorded(settings: Settings) -> list[Recorded]:
    """Return what is recorded."""
    from statecache.cli.connecting import client

    async with client(settings) as cache:
        rows = await cache._runtime.postgres.fetch("namespaces", {}, seconds=cache.settings.timeout_s)
        names = ("namespace", "locking", "changed_by", "changed_at")
        return [Recorded(**dict(zip(names, row, strict=True))) for row in rows]


async def record(settings: Settings, namespace: str, locking: Locking) -> None:
    """Record how a namespace's locks are kept."""
    from statecache.cli.connecting import client

    async with client(settings, writer=f"operator {operator()}") as cache:
        await cache._runtime.policies.record(namespace, locking, seconds=cache.settings.timeout_s)


def policy(
    namespace: Annotated[str | None, typer.Argument(metavar="[NAMESPACE]", help="Only this one.")] = None,
    locking: Annotated[
        str | None,
        typer.Option(help=f"Record this one of {', '.join(LOCKINGS)}.", autocompletion=one_of(LOCKINGS)),
    ] = None,
    yes: Yes = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show how the locks of namespaces are kept, or change it for all who write to one, from their next commit on.

    Enforced locks take no commit but their holder's; advisory ones guard what is written by a lease alone. A view of
    the client that says locking="enforced" records it, where nothing is recorded yet; only this command takes it back,
    which --yes has to confirm, and that holds for such views too.
    Exit status 1 where nothing is recorded of NAMESPACE.

    \b
    Examples:
      statecache policy
      statecache policy runs --locking enforced
      statecache policy runs --locking advisory --yes
    """
    wanted = None if namespace is None else checked_namespace(namespace)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if locking is not None:
        asyncio.run(record(settings, *_asked(wanted, locking, yes=yes)))
    found = [one for one in asyncio.run(recorded(settings)) if wanted in (None, one.namespace)]
    if as_json:
        print_json({"policies": found})
    elif found:
        rows = [
            [one.namespace, one.locking, plain(one.changed_by), one.changed_at.isoformat(sep=" ", timespec="seconds")]
            for one in found
        ]
        print_table(["namespace", "locking", "recorded by", "at"], rows)
    else:
        print("nothing is recorded: locks are advisory")
    return FINDING if wanted is not None and not found else OK


def _asked(namespace: str | None, locking: str, *, yes: bool) -> tuple[str, Locking]:
    if namespace is None:
        raise UsageError("--locking needs a NAMESPACE")
    if locking == "enforced":
        return namespace, "enforced"
    if locking != "advisory":
        raise UsageError(f"locking {locking!r} is not one of {', '.join(LOCKINGS)}")
    if not yes:
        what = f"this lets everybody commit to {namespace!r} past the holders of its locks"
        raise UsageError(what, hint="Say --yes if they may.")
    return namespace, "advisory"
