"""A way back that was asked for, and what it will change, as a person is shown it before it is done.

It is decided as the verb decides it. Of a key the verb is told to expect the state that was shown, so it does what was
shown, or is refused. Of a group all of it is decided once more after the answer, and must have come out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET
from rich.text import Text

from statecache.cli.history.diff_view import facts_of
from statecache.cli.history.headers import header_of, titled
from statecache.cli.history.points import PointName
from statecache.cli.history.reading import plain_of, plain_value
from statecache.cli.restoring.preview import group_changes, tell_differences, tell_group
from statecache.cli.screen import beside, console, is_terminal, plain, print_json, say
from statecache.clock import wall
from statecache.core.history.reader import Point
from statecache.core.history.restoring import to_target, walking
from statecache.core.history.restoring_groups import decided_group, group_walking, to_group_target
from statecache.core.history.terms import Terms
from statecache.history_errors import AlreadyCurrent
from statecache.rules.difference import differences

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.core.history.restoring import Decide, Walk
    from statecache.core.history.restoring_groups import GroupDecide
    from statecache.model import Position
    from statecache.rules.versions import Version

Verb = Literal["rollback", "undo", "redo"]


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """A way back; `to` is where to, None for an undo or a redo, which find that out. `more` is for the verb alone."""

    verb: Verb
    key: str
    group: bool
    more: dict[str, Any]
    to: PointName | None = None
    steps: bool = False

    @property
    def aim(self) -> dict[str, Any]:
        """What the verb is told of where to go."""
        if self.to is None:
            return {}
        if self.to.time is not None:
            return {"at": self.to.time}
        return {"to": next(one for one in (self.to.version, self.to.position, self.to.label) if one is not None)}

    @property
    def scope(self) -> dict[str, Any]:
        """What the verb is told of how much goes."""
        return {"group": True, "steps": True} if self.steps else {"group": self.group}

    def decide(self, cache: AsyncStateCache) -> Decide:
        """Return what decides on where a key goes."""
        view, terms = cache._view, _terms(cache)
        if self.verb == "rollback":
            return to_target(view, self.key, self.aim.get("to"), self.aim.get("at"), terms)
        walk: Walk = self.verb
        return walking(view, self.key, walk, terms)

    def decide_group(self, cache: AsyncStateCache) -> GroupDecide:
        """Return what decides on where a group goes."""
        view, terms = cache._view, _terms(cache)
        if self.verb == "rollback":
            return to_group_target(view, self.key, self.aim.get("to"), self.aim.get("at"), terms)
        walk: Walk = self.verb
        return group_walking(view, self.key, walk, terms)


def _terms(cache: AsyncStateCache) -> Terms:
    return Terms.of(cache._view, durability=None, actor="", reason="", timeout=None)


async def show_key(cache: AsyncStateCache, going: Going, *, as_json: bool) -> str | None:
    """Show what becomes of a key; return the change that the verb has to expect, None for nothing."""
    record = await cache._runtime.reader.record(going.key, end=cache._view.end_of(None))
    version = (await going.decide(cache)(record)).version
    now: Any = UNSET
    if record.exists:
        newest = await cache._runtime.history.version_at(
            going.key, Point(version=record.version), end=cache._view.end_of(None)
        )
        now = plain_of(newest, record.value)
    found = differences(now, await plain_value(cache, version))
    if not found and going.verb == "rollback":
        raise AlreadyCurrent(going.key, wanted=f"version {version.version}")
    if as_json:
        facts = {"key": going.key, "version": record.version, "to": header_of(version)}
        print_json(facts | {"differences": facts_of(found)})
        return None
    if is_terminal():
        say(f"{plain(going.key)} is at version {record.version}. It goes back to what it was at")
        console().print(beside(Text(" "), titled(version, wall())))
        if not found:
            print("The value stays as it is.")
    tell_differences(found)
    return record.change_id if record.exists else None


async def show_group(cache: AsyncStateCache, going: Going, *, as_json: bool) -> object:
    """Show what becomes of a group; return what has to come out the same for that to be done."""
    seen = await group_decided(cache, going)
    position = seen[0]
    changes = await group_changes(cache, going.key, position, steps=going.steps)
    if not changes:
        raise AlreadyCurrent(going.key, wanted=f"{position}")
    if as_json:
        told = [
            {"key": one.key, "what": one.what} | ({} if one.found is None else {"differences": facts_of(one.found)})
            for one in changes
        ]
        print_json({"group": going.key, "position": str(position), "keys": told})
        return seen
    if is_terminal():
        say(f"The group {plain(going.key)} goes back to what it was at position {position}:")
    tell_group(changes)
    return seen


async def group_decided(cache: AsyncStateCache, going: Going) -> tuple[Position, Sequence[tuple[str, int]]]:
    """Return to which position a group goes, and the versions that this was decided on."""
    view = cache._view
    end = view.end_of(None)
    now: Sequence[Version] = await cache._runtime.history.keys_at(going.key, Point(), end=end)
    decision = await decided_group(view, going.key, now, going.decide_group(cache), end, steps=going.steps)
    return decision.position, [(one.key, one.version) for one in now]
