"""`statecache prune`: letting values of changes go, as policies say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from statecache.cli.asking import confirmed
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, Yes, settings_of
from statecache.cli.screen import Counting, counted, plain, print_json, print_table, say, size_text, tell
from statecache.keys import checked_namespace

if TYPE_CHECKING:
    from statecache.settings import Settings
    from statecache_workers.prune_by_hand import Outcome

_COLUMNS = ("namespace", "kept", "values", "bytes", "pinned")


def prune(
    namespace: Annotated[str | None, typer.Argument(metavar="[NAMESPACE]", help="Only this one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Yes = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Let values of changes go that the policies of their namespaces do not keep; workers do so by themselves in time.

    The newest values stay, those that checkpoints name, those that branches began with, and of every change what it
    says: who, when, why, and the digest of its value. It says first what would go, and asks, unless --yes. Small
    transactions, beside workers; where it is cut off, it may be begun again. An age has passed when it has by the
    clock of Redis, which is asked for it, and by that of Postgres. The space is Postgres' to use again; VACUUM FULL
    gives it back to the disk. It takes a worker's role. Exit status 1 where a history is damaged, which is left alone:
    `statecache verify` names the rows.

    \b
    Examples:
      statecache policy runs --retention 90d --yes
      statecache prune --dry-run
      statecache prune runs --yes --json
    """
    wanted = None if namespace is None else checked_namespace(namespace)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if dry_run or not yes:
        would = _run(settings, wanted, dry_run=True)
        values = sum(one.values for one in would)
        if dry_run or not values:
            return _told(would, wanted, dry_run=True, as_json=as_json)
        if not as_json:
            _table(would)
        size = size_text(sum(one.bytes for one in would))
        what = f"{counted(values, 'value')} of changes, {size}, would go for good"
        if not confirmed(what, yes=False):
            tell("nothing was let go")
            return FINDING
    return _told(_run(settings, wanted, dry_run=False), wanted, dry_run=False, as_json=as_json)


def _run(settings: Settings, namespace: str | None, *, dry_run: bool) -> list[Outcome]:
    from statecache_workers.prune_by_hand import prune as run

    with Counting("counting" if dry_run else "letting values go") as progress:
        return asyncio.run(run(settings, namespace, dry_run=dry_run, progress=progress))


def _told(outcomes: list[Outcome], namespace: str | None, *, dry_run: bool, as_json: bool) -> int:
    if as_json:
        print_json({"pruned": outcomes, "dry_run": dry_run})
    elif outcomes:
        _table(outcomes)
    else:
        where = "of any namespace" if namespace is None else f"of {namespace!r}"
        say(f"no policy lets values {where} go: `statecache policy` shows what is recorded")
    for one in outcomes:
        for key, version, why in one.damaged:
            tell(f"left alone: {plain(key)}@{version}: {plain(why)}")
    return FINDING if any(one.damaged for one in outcomes) or (namespace and not outcomes) else OK


def _table(outcomes: list[Outcome]) -> None:
    rows = [[one.namespace, one.policy, f"{one.values:,}", size_text(one.bytes), f"{one.pinned:,}"] for one in outcomes]
    print_table(_COLUMNS, rows)
