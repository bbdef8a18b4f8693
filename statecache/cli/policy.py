"""`statecache policy`: how the locks of namespaces are kept, and their histories, by all who write to them."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from statecache.cli.asking import confirmed
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, Yes, one_of, operator, settings_of, span_of
from statecache.cli.screen import plain, print_json, print_table, say, tell
from statecache.errors import UsageError
from statecache.keys import checked_namespace
from statecache.model import LOCKINGS, Locking
from statecache.retention import HISTORIES, History, Retention
from statecache.rules.retention import checked_retention
from statecache.settings import Settings

NONE = "none"
_HISTORIES = one_of(HISTORIES)


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of a namespace; None of what is not."""

    namespace: str
    locking: str | None = None
    history: str | None = None
    retention_s: float | None = None
    retention_count: int | None = None
    changed_by: str
    changed_at: datetime

    @property
    def retention(self) -> Retention:
        """What is kept of its history."""
        age = None if self.retention_s is None else timedelta(seconds=self.retention_s)
        history: History = "latest" if self.history == "latest" else "full"
        return Retention(history=history, max_age=age, max_count=self.retention_count)


async def recorded(settings: Settings) -> list[Recorded]:
    """Return what is recorded."""
    from statecache.cli.connecting import client

    async with client(settings) as cache:
        names = ("namespaces", "history_policies")
        locks, histories = await cache._runtime.postgres.fetch_each(names, {}, seconds=cache.settings.timeout_s)
    found: dict[str, Recorded] = {}
    for name, locking, by, at in locks:
        found[name] = Recorded(namespace=name, locking=locking, changed_by=by, changed_at=at)
    for name, history, age, count, by, at in histories:
        known = found.get(name)
        newest = (by, at) if known is None or at >= known.changed_at else (known.changed_by, known.changed_at)
        found[name] = Recorded(
            namespace=name, locking=None if known is None else known.locking, history=history,
            retention_s=None if age is None else float(age), retention_count=count, changed_by=newest[0],
            changed_at=newest[1],
        )  # fmt: skip
    return [found[name] for name in sorted(found)]


async def record_locking(settings: Settings, namespace: str, locking: Locking) -> None:
    """Record how a namespace's locks are kept."""
    from statecache.cli.connecting import client

    async with client(settings, writer=f"operator {operator()}") as cache:
        await cache._runtime.policies.record(namespace, locking, seconds=cache.settings.timeout_s)


async def record_history(settings: Settings, namespace: str, retention: Retention) -> None:
    """Record what is kept of a namespace's history."""
    from statecache.cli.connecting import client

    asked = {
        "name": namespace, "history": retention.history, "age": retention.max_age, "count": retention.max_count,
        "by": f"operator {operator()}",
    }  # fmt: skip
    async with client(settings) as cache:
        await cache._runtime.postgres.fetch("set_history", asked, seconds=cache.settings.timeout_s)


def policy(
    namespace: Annotated[str | None, typer.Argument(metavar="[NAMESPACE]", help="Only this one.")] = None,
    locking: Annotated[
        str | None,
        typer.Option(help=f"Record this one of {', '.join(LOCKINGS)}.", autocompletion=one_of(LOCKINGS)),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(help=f"Keep values of changes: one of {', '.join(HISTORIES)}.", autocompletion=_HISTORIES),
    ] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Let go what was replaced so long ago, as 90d or 12h; or none.")
    ] = None,
    retention_count: Annotated[
        str | None, typer.Option(metavar="N", help="Let go all but the newest so many of each key; or none.")
    ] = None,
    yes: Yes = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Show how locks and histories of namespaces are kept, or change it for all who write to one.

    Enforced locks take no commit but their holder's; advisory ones guard what is written by a lease alone. A view of
    the client that says locking="enforced" records it, where nothing is recorded yet; only this command takes it back,
    which --yes has to confirm, and that holds for such views too.

    Of a history workers keep the values of all changes, or of the latest; --retention and --retention-count bound that,
    and what either keeps is kept. A view that says so records it where nothing is recorded; only this command changes
    it, and asks where values may go. `statecache prune --dry-run` shows which.
    Exit status 1 where nothing is recorded of NAMESPACE.

    \b
    Examples:
      statecache policy
      statecache policy runs --locking enforced
      statecache policy runs --locking advisory --yes
      statecache policy runs --retention 90d --retention-count 100
      statecache policy caches --history latest --yes
    """
    wanted = None if namespace is None else checked_namespace(namespace)
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    if locking is not None:
        asyncio.run(record_locking(settings, *_asked(wanted, locking, yes=yes)))
    given = (history, retention, retention_count)
    if given != (None, None, None) and not _changed(settings, wanted, *given, yes=yes):
        tell("nothing was changed")
        return FINDING
    found = [one for one in asyncio.run(recorded(settings)) if wanted in (None, one.namespace)]
    if as_json:
        print_json({"policies": found})
    elif found:
        print_table(["namespace", "locking", "history", "recorded by", "at"], [_cells(one) for one in found])
    else:
        say("nothing is recorded: locks are advisory, and all values of changes are kept")
    return FINDING if wanted is not None and not found else OK


def _cells(one: Recorded) -> list[str]:
    history = "" if one.history is None else str(one.retention)
    at = one.changed_at.isoformat(sep=" ", timespec="seconds")
    return [one.namespace, one.locking or "", history, plain(one.changed_by), at]


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


def _changed(
    settings: Settings, namespace: str | None, history: str | None, age: str | None, count: str | None, *, yes: bool
) -> bool:
    """Record what is kept of a namespace's history, once that is confirmed; what is not said stays as it is."""
    if namespace is None:
        raise UsageError("--history, --retention and --retention-count need a NAMESPACE")
    known = next((one for one in asyncio.run(recorded(settings)) if one.namespace == namespace), None)
    before = Retention() if known is None else known.retention
    if history == "latest" and age is None and count is None:
        before = Retention()
    given: Any = {
        "history": history or ("full" if age or count else before.history),
        "retention": before.max_age if age is None else _span_of(age),
        "retention_count": before.max_count if count is None else _count_of(count),
    }
    retention = checked_retention(**given) or Retention()
    what = f"workers will let go of values of {namespace!r}, but for {retention}, and what checkpoints name"
    if retention.bounded and retention != before and not confirmed(what, yes=yes):
        return False
    asyncio.run(record_history(settings, namespace, retention))
    return True


def _span_of(text: str) -> timedelta | None:
    return None if text == NONE else span_of(text, "--retention", hint=f"Say 90d or 12h, or {NONE}.")


def _count_of(text: str) -> int | None:
    if text == NONE:
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--retention-count {text!r} is no number", hint=f"Say how many are kept, or {NONE}.")
    return int(text)
