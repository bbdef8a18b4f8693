"""Calls that are repeated by their change_id: what an earlier one made, or that it was asked for something else.

A change says by its reason which verb made it, and from what. The same verb, of the same branch or to the same point,
is answered with what was made then, whatever has become of the key since. A point that meant something else by now than
it did then, as a moment still to come or a label given later, is no proof that something else was asked for.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.core.history.reader import VERSION_MAX, Point
from statecache.core.history.targets import target_of
from statecache.errors import ChangeIdReused, OutcomeUnknown
from statecache.history_errors import CheckpointNotFound, VersionNotFound
from statecache.rules.provenance import Kind, Provenance, provenance_of

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Found
    from statecache.core.history.targets import Aim
    from statecache.core.history.terms import Terms
    from statecache.core.view import View
    from statecache.rules.versions import Version


class Asked(NamedTuple):
    """What a call asks for: a verb, the other key that it takes from, if there is one, and the point, if it is said."""

    kind: Kind
    origin: str = ""
    aim: Aim = None
    at: datetime | None = None


async def made_before(view: View[Any], key: str, found: Found, asked: Asked, terms: Terms) -> Version:
    """Return the change that an earlier call with the same change_id has made; raise ChangeIdReused for another one.

    Raises OutcomeUnknown where it is gone by now, as with its Redis: another one has its version.
    """
    version = await view.runtime.history.version_at(key, Point(version=found.versions[0]), end=terms.end)
    if version.change_id != terms.change_id:
        gone = f"it was found at version {version.version}, which is another change by now"
        raise OutcomeUnknown(str(terms.change_id), keys=(key,), reason=gone)
    said = provenance_of(version.reason)
    if (
        said is None or said.position is not None or (said.kind, said.origin) != (asked.kind, asked.origin)
        or await _means_another(view, asked.origin or key, asked, said, version, terms.end)
    ):  # fmt: skip
        raise ChangeIdReused(key, str(terms.change_id), version=version.version)
    return version


async def _means_another(view: View[Any], key: str, asked: Asked, said: Provenance, made: Version, end: float) -> bool:
    """Return whether the point that is asked for has never been the one that a change was made from."""
    aim = asked.aim
    if aim is None and asked.at is None:
        return False
    if isinstance(aim, str):
        try:
            aim = await view.runtime.checkpoints.find(key, aim, end=end)
        except CheckpointNotFound:
            return False
        if aim.created_at >= made.at:
            return False
    point = (await target_of(view, key, aim, asked.at, whole=False, end=end)).point
    if point.version != VERSION_MAX:
        return point.version != said.version
    try:
        meant = await view.runtime.history.version_at(key, point, end=end)
    except VersionNotFound:
        return True
    return meant.version != said.version and meant.at < made.at
