"""Which prepared changes are undecided still: one that had gone from a state, and came back with it, was decided.

`undo`, `redo` and `rollback` bring the state of an app or a user back as it was, and with it what was prepared in it
then. What it led to is what they took back, so it must not take effect once more.

Each write of a service names in what is prepared the change that it was written over. Where that is the parent of the
state's change, a service has written the state. If not, somebody else has, who has edited or restored it, and the
history tells: a change was decided if it was resolved since a service has written it so. A branch is begun with the
decisions of its origin: what is prepared there for sessions of another user or app is none of its own. Nothing is
written for that, so an undo can be followed by another one, and by a redo.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from statecache.adapters.adk.documents import Prepared, Shared, is_of, read_shared

if TYPE_CHECKING:
    from statecache import AsyncNamespace, Change, State

PREPARE, RESOLVE = "prepare", "resolve"
"""The reasons of what services write of the states of apps and users."""
LOOKED_BACK = 500
"""In so many versions it is looked for when a change was prepared; one that was before them is undecided."""
KNOWN_MAX = 1000
"""Of how many prepared changes in states that others have written it is remembered whether they are undecided."""
_known: dict[tuple[str, str], bool] = {}


async def undecided(view: AsyncNamespace[Any], name: str, state: State[Any]) -> Shared:
    """Return the state of an app or a user without what was prepared there and decided before.

    Raises what `history` raises, where that has to be asked.
    """
    shared = read_shared(state)
    stands = {
        revision: one.over is None or (is_of(name, one.session) and one.over == state.parent_change_id)
        for revision, one in shared.prepared.items()
    }
    sought = {
        revision: one for revision, one in shared.prepared.items() if not stands[revision] and is_of(name, one.session)
    }
    if sought:
        stands |= await _stood(view, name, state, sought)
    left = {revision: one for revision, one in shared.prepared.items() if stands[revision]}
    return msgspec.structs.replace(shared, prepared=left)


async def _stood(
    view: AsyncNamespace[Any], name: str, state: State[Any], sought: dict[str, Prepared]
) -> dict[str, bool]:
    """Return of prepared changes whether nobody has resolved them since a service has written them so."""
    known = {revision: _known.get((state.change_id, revision)) for revision in sought}
    if None not in known.values():
        return {revision: bool(stood) for revision, stood in known.items()}
    found = await _looked_up(view, name, state.version, sought)
    if len(_known) + len(found) > KNOWN_MAX:
        _known.clear()
    _known.update({(state.change_id, revision): stood for revision, stood in found.items()})
    return found


async def _looked_up(
    view: AsyncNamespace[Any], name: str, version: int, sought: dict[str, Prepared]
) -> dict[str, bool]:
    """Look prepared changes up in the history, from a version back."""
    found = dict[str, bool]()
    changes = view.history(name, until=version, limit=LOOKED_BACK, reverse=True, values=True)
    async with aclosing(changes):  # type: ignore[type-var]
        async for change in changes:
            for revision in sought.keys() - found.keys():
                if change.reason in (PREPARE, RESOLVE) and change.parent_change_id == sought[revision].over:
                    found[revision] = True
                elif change.reason == RESOLVE and not _holds(change, revision):
                    found[revision] = False
            if found.keys() == sought.keys():
                break
    return dict.fromkeys(sought, True) | found


def _holds(change: Change[Any], revision: str) -> bool:
    """Return whether a change is known to have been prepared in a version."""
    return isinstance(change.value, dict) and revision in change.value.get("prepared", ())
