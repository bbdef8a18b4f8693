"""`statecache locks`: who holds what, who waits, and taking a lock away from its holder."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, RedisUrl, Yes, settings_of
from statecache.cli.screen import is_terminal, plain, print_json, print_table, say, tell, time_text
from statecache.errors import UsageError
from statecache.keys import checked_key

if TYPE_CHECKING:
    from statecache.cli.locks.held import Lock


def locks(
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only this one, and who waits for it.")] = None,
    breaks: Annotated[
        str | None, typer.Option("--break", metavar="KEY", help="Take this lock away from its holder.")
    ] = None,
    yes: Yes = False,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> int:
    """List the locks that are held, longest first: by whom, since when, how long still, and how many wait.

    A holder that lives renews its lease, so what is left of it says little. --break gives the lock to whoever waits
    for it, and all that its holder still writes under it is refused; it asks first on a terminal, unless --yes. Exit
    status 1 where KEY is not locked, 3 where this Redis holds no data set of this deployment. It takes the rights of a
    worker: HGETALL.

    \b
    Examples:
      statecache locks
      statecache locks runs/42
      statecache locks --break runs/42 --yes
      statecache locks --json | jq -r .locks[].holder
    """
    from statecache.cli.locks import held as standing

    if key is not None and breaks is not None:
        raise UsageError("KEY and --break KEY exclude one another")
    wanted = breaks if key is None else key
    settings = settings_of(redis_url=redis_url)
    found = asyncio.run(standing.locks(settings, None if wanted is None else checked_key(wanted)))
    if wanted is not None and not found:
        tell(f"{plain(wanted)}: nobody holds its lock")
    if breaks is not None:
        asks = bool(found) and not yes and sys.stdin.isatty() and is_terminal()
        refused = asks and not typer.confirm(f"Take {plain(breaks)} away from {plain(found[0].holder)}?", err=True)
        broken = bool(found) and not refused and asyncio.run(standing.take_away(settings, found[0]))
        if as_json:
            print_json({"key": breaks, "broken": broken, "holder": found[0].holder if broken else None})
        elif broken:
            say([plain(breaks), f"taken away from {plain(found[0].holder)}, token {found[0].token}"])
        elif found:
            tell(f"{plain(breaks)}: its lock was left as it is")
        return OK if broken else FINDING
    if as_json:
        print_json({"locks": found})
    elif found:
        _show(found, waiters=key is not None)
    elif key is None:
        print("nobody holds a lock")
    return FINDING if wanted is not None and not found else OK


def _show(found: list[Lock], *, waiters: bool) -> None:
    rows = [
        [one.key, one.holder, one.token, time_text(one.age_s), time_text(one.left_s), str(len(one.waiters))]
        for one in found
    ]
    print_table(["key", "holder", "token", "age", "left", "waiters"], rows)
    if waiters:
        for at, one in enumerate(found[0].waiters, 1):
            print(f"{at}. {plain(one.waiter)}  waits for {time_text(one.age_s)}")
