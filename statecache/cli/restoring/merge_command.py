"""`merge`: what was done on a branch, taken into another key, after a person has seen what that changes.

It is decided here as the verb decides it, on the newest versions of both; after the answer they must be the newest
still. What both sides changed in their own ways is shown by path, and nothing is done, unless it is said whose counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import (
    Actor,
    AsJson,
    Level,
    PostgresUrl,
    Reason,
    RedisUrl,
    Yes,
    checked_durability,
    one_of,
    operator,
    settings_of,
)
from statecache.cli.restoring.rollback_command import DryRun
from statecache.cli.screen import plain, print_json, tell
from statecache.cli.states.command import ChangeId, asks, confirmed, tell_state
from statecache.errors import UsageError
from statecache.keys import checked_key
from statecache.rules.three_way import Conflict, merged

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.model import State
    from statecache.rules.difference import Difference
    from statecache.rules.versions import Version
    from statecache.settings import Settings

SIDES = ("ours", "theirs")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge comes to: what it changes in the key that it goes into, and what both sides changed differently.

    `nothing` says that the branch has nothing that is not there already.
    """

    ours: Version
    theirs: Version
    base: str
    nothing: bool
    found: Sequence[Difference]
    conflicts: Sequence[Conflict]

    @property
    def decided_on(self) -> tuple[str, str]:
        """What must be the newest still when it is done."""
        return self.ours.change_id, self.theirs.change_id


def merge(
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="The key whose changes are taken.")],
    into: Annotated[str, typer.Argument(metavar="INTO", help="The key that takes them in.")],
    prefer: Annotated[
        str | None,
        typer.Option(
            metavar="SIDE",
            help="What both changed is as in INTO (ours) or BRANCH (theirs).",
            autocompletion=one_of(SIDES),
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    change_id: ChangeId = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Take into one key what was done on a branch since both were the same, part by part.

    What only one side changed is taken from it, and what both appended to a list is kept. On a terminal it shows what
    that changes and asks, unless --yes. What both changed differently is listed by path, and nothing is done, unless
    --prefer. Exit status 1 then, and where the answer is no. With --json, one object: the state; with --dry-run,
    `differences` and `conflicts`.

    \b
    Examples:
      statecache merge runs/42-b runs/42
      statecache merge runs/42-b runs/42 --dry-run --json | jq '.conflicts[].path'
      statecache merge runs/42-b runs/42 --prefer theirs --reason "both found it"
    """  # fmt: skip
    if prefer not in (None, *SIDES):
        raise UsageError(f"--prefer {prefer!r} is not one of {', '.join(SIDES)}")
    keys = checked_key(branch), checked_key(into)
    if keys[0] == keys[1]:
        raise UsageError(f"{branch!r} cannot be merged into itself")
    more: dict[str, Any] = {
        "durability": checked_durability(durability), "actor": actor or operator(), "reason": reason,
        "change_id": change_id, "function": deciding(prefer),
    }  # fmt: skip
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    asking, seen = asks(not yes) and change_id is None, None
    if dry_run or asking:
        seen = asyncio.run(_planned(settings, *keys, more["function"]))
        _show(seen, as_json=as_json and dry_run)
        stuck = bool(seen.conflicts) and prefer is None
        if dry_run or stuck or seen.nothing:
            return FINDING if stuck else OK
        if not confirmed(f"Merge {plain(branch)} into {plain(into)}?"):
            tell("nothing was changed")
            return FINDING
    state = asyncio.run(_merged(settings, *keys, more, seen=seen))
    if state is None:
        tell("one of them was changed while you were asked: nothing was done. Look again.")
        return FINDING
    tell_state(state, as_json=as_json)
    return OK


def deciding(prefer: str | None) -> Callable[[Any, Any, Any], Any] | None:
    """Return a function that merges three values and takes one side where both changed the same; None for neither."""
    if prefer is None:
        return None

    def decide(base: Any, ours: Any, theirs: Any) -> Any:
        sides = (ours, theirs) if prefer == "ours" else (theirs, ours)
        return merged(UNSET if base is None else base, *sides).value

    return decide


async def _planned(settings: Settings, branch: str, into: str, function: Callable[[Any, Any, Any], Any] | None) -> Plan:
    async with client(settings) as cache:
        return await planned(cache, branch, into, function)


async def _merged(
    settings: Settings, branch: str, into: str, more: dict[str, Any], *, seen: Plan | None
) -> State[Any] | None:
    """Merge; return the state, None where a plan that was seen was decided on what is not the newest any more."""
    async with client(settings) as cache:
        if seen and (await planned(cache, branch, into, more["function"])).decided_on != seen.decided_on:
            return None
        return await cache.merge(branch, into, **more)


async def planned(
    cache: AsyncStateCache, branch: str, into: str, function: Callable[[Any, Any, Any], Any] | None
) -> Plan:
    """Return what a merge comes to; raise VersionNotFound, and UsageError for keys that have nothing in common."""
    from statecache.cli.history.points import NEWEST
    from statecache.cli.history.reading import plain_value, version_at
    from statecache.core.history.branching import durable_origin
    from statecache.core.history.merge_bases import base_of, place_of
    from statecache.core.history.merge_bases import plain as plain_side
    from statecache.core.own_records import refuse_merge_of_head
    from statecache.rules.difference import differences

    view = cache._view
    end = view.end_of(None)
    ours, theirs = await version_at(cache, into, NEWEST), await version_at(cache, branch, NEWEST)
    for one in (ours, theirs):
        await durable_origin(view, one, end)
    base = await base_of(view, ours, theirs, function, end)
    at = f"{base.place.key}@{base.place.version}"
    mine, other = await plain_value(cache, ours), await plain_value(cache, theirs)
    if base.place == place_of(theirs):
        return Plan(ours=ours, theirs=theirs, base=at, nothing=True, found=(), conflicts=())
    if base.place == place_of(ours):
        if found := differences(mine, other):
            refuse_merge_of_head(into, other)
        return Plan(ours=ours, theirs=theirs, base=at, nothing=False, found=found, conflicts=())
    start = base.value if base.crossed else plain_side(view, into, base.sides[0])
    if base.crossed and base.is_same(other, by_function=function is not None):
        return Plan(ours=ours, theirs=theirs, base=at, nothing=True, found=(), conflicts=())
    result = merged(start, mine, other, crossed=base.crossed)
    value = result.value if function is None else function(None if start is UNSET else start, mine, other)
    if (found := differences(mine, value)) or result.conflicts:
        refuse_merge_of_head(into, value)
    return Plan(ours=ours, theirs=theirs, base=at, nothing=False, found=found, conflicts=result.conflicts)


def _show(plan: Plan, *, as_json: bool) -> None:
    from statecache.cli.history.diff_view import facts_of
    from statecache.cli.restoring.preview import tell_conflicts, tell_differences

    into, branch = plain(plan.ours.key), plain(plan.theirs.key)
    if as_json:
        conflicts = [
            {"path": one.place}
            | {name: part for name in ("base", "ours", "theirs") if (part := getattr(one, name)) is not UNSET}
            for one in plan.conflicts
        ]
        facts = {"branch": plan.theirs.key, "into": plan.ours.key, "base": plan.base}
        print_json(facts | {"differences": facts_of(plan.found), "conflicts": conflicts})
        return
    if plan.nothing:
        tell(f"{branch} has nothing that {into} has not")
        return
    tell_differences(plan.found, f"{into}@{plan.ours.version} takes in what {branch} has since {plain(plan.base)}:")
    tell_conflicts(plan.conflicts)
