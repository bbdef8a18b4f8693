"""What a call means by a point to go back to: a checkpoint or its label, a version, a position, a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.checkpoints import Checkpoint
from statecache.core.arguments import checked_moment, checked_position
from statecache.core.history.reader import VERSION_MAX, Point
from statecache.errors import UsageError
from statecache.history_errors import VersionNotFound
from statecache.keys import group_of
from statecache.model import Position
from statecache.rules.checkpoints import checked_label
from statecache.rules.versions import at_moment

if TYPE_CHECKING:
    from datetime import datetime

    from statecache.core.view import View
    from statecache.rules.versions import Version

Aim = Checkpoint | str | int | Position | None
"""A checkpoint, its label, a version or a position; None where a moment is given instead."""


class Target(NamedTuple):
    """A point in history, and the change that has to be there, if that is known, by whom."""

    point: Point
    change_id: str = ""
    known: str = "as it was read"

    def reached(self, found: Version) -> Version:
        """Return the version that was found there; raise VersionNotFound where it is another change."""
        if not self.change_id or found.change_id == self.change_id:
            return found
        why = "that change was lost or set aside, or is of another deployment: another one is there"
        wanted = f"version {found.version} {self.known}"
        raise VersionNotFound(found.key, wanted=wanted, reason=why, nearest=found.version)


def checked_aim(to: Aim, at: datetime | None, *, whole: bool) -> None:
    """Raise UsageError for what is no point of a key's, or with `whole` of a group's history."""
    if (to is None) == (at is None):
        raise UsageError("either a point or a moment says where to go", hint='Say to=7, to="label", or at=….')
    if at is not None:
        checked_moment(at, "at")
    elif isinstance(to, str):
        checked_label(to)
    elif isinstance(to, Position):
        checked_position(to, "to")
    elif not isinstance(to, Checkpoint) and (whole or isinstance(to, bool) or not isinstance(to, int)):
        kinds = "a checkpoint, its label or a position" if whole else "a checkpoint, its label, a version or a position"
        raise UsageError(f"{to!r} is no point to go to", hint=f"That is {kinds}.")


async def target_of(view: View[Any], key: str, to: Aim, at: datetime | None, *, whole: bool, end: float) -> Target:
    """Return what was checked and is meant of a key, or with `whole` of a group.

    Raises CheckpointNotFound, and UsageError for a checkpoint of something else.
    """
    if isinstance(to, str):
        to = await view.runtime.checkpoints.find(key, to, end=end)
    if isinstance(to, Checkpoint):
        return _marked(key, to, whole=whole)
    if isinstance(to, Position):
        return Target(Point.at(to))
    return Target(Point(time=checked_moment(at, "at")) if to is None else point_of_version(to))


def point_of_version(version: int) -> Point:
    """Return the point that a version is: no key reaches VERSION_MAX, which in a point stands for the newest one."""
    return Point(version=version if version != VERSION_MAX else version + 1)


def _marked(key: str, mark: Checkpoint, *, whole: bool) -> Target:
    if mark.scope == "group" and mark.key == group_of(key):
        return Target(Point.at(mark.position))
    if mark.key != key:
        raise UsageError(f"{mark.label!r} is a checkpoint of {mark.key!r}, not of {key!r}")
    if whole:
        raise UsageError(f"{mark.label!r} is a checkpoint of the key {key!r}, not of the group")
    if mark.version is None:  # whoever made it was cut off before it was filled in
        return Target(Point.at(mark.position))
    return Target(Point(version=mark.version), mark.change_id, "as the checkpoint names it")


async def version_of(view: View[Any], key: str, target: Target, *, end: float) -> Version:
    """Return the version of a key at a target; raise VersionNotFound."""
    return target.reached(await view.runtime.history.version_at(key, target.point, end=end))


async def group_at(view: View[Any], group: str, point: Point, *, end: float) -> list[Version]:
    """Return the newest change of each key of a group at a point, sorted by key.

    A moment stands for the position of the newest change that is no later. Where a clock went back, the changes of each
    key that are no later would make up a group that never was.
    """
    found = await view.runtime.history.keys_at(group, point, end=end)
    if point.time is None or not found:
        return found
    position = max(one.position for one in found)
    then = await view.runtime.history.keys_at(group, Point.at(position), end=end)
    return [at_moment(one, point.time) for one in then]


async def position_of(view: View[Any], group: str, target: Target, *, end: float) -> Position:
    """Return the position of a group's newest change at a target; raise VersionNotFound where there was nothing yet."""
    versions = await view.runtime.history.keys_at(group, target.point, end=end)
    if not versions:
        raise VersionNotFound(group, wanted=str(target.point), reason="nothing of the group is that old")
    return max(one.position for one in versions)
