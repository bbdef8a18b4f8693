"""The states of apps and of users: what events change there takes effect with the event, or not at all.

    prepare     the change is written beside the state, by the revision that the session will have with the event
    commit      the session gets the event, and that revision
    resolve     what was prepared becomes part of the state, and goes

Between these, and after a crash, a change is in doubt, and the session's head decides: of the revision that it waits
for, it takes effect; still of the one before, it may do so yet, and stays; of any other, it never will, and goes. What
was prepared to create a session stays though there is another one, which may be deleted before the session is created.
The head names where its last event was prepared, and who appends the next resolves that first. What is prepared is
resolved by comparing the state with the one that was read, so it takes effect once, whoever resolves it, and a process
that was stopped in between finds it gone. Who resolves an event's change has those of other sessions that have theirs
take effect before it: one that is told to be appended is written over by nothing that was there before it. What was
resolved, and is prepared again since somebody has put an older state back, never takes effect again: it is passed over,
and goes with the next write.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from google.adk.platform import time as platform_time

from statecache import (
    Backpressure,
    DurabilityNotMet,
    DurabilityRefused,
    HistoryDamaged,
    HistoryIncomplete,
    LockHeld,
    OutcomeUnknown,
    StateCacheError,
    Unavailable,
    VersionNotFound,
)
from statecache.adapters.adk.documents import Deltas, Of, Place, Prepared, Shared, read_head, read_shared
from statecache.adapters.adk.undecided import PREPARE, RESOLVE, undecided
from statecache.adapters.items import given, kept
from statecache.adapters.plans import Declined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statecache import AsyncNamespace, Durability, State

_NOT_WRITTEN = (Backpressure, DurabilityNotMet, DurabilityRefused, LockHeld, OutcomeUnknown, Unavailable)
"""What a write ends with that may succeed later: what a reader has seen is as true without it."""
_NOT_KNOWN = (HistoryDamaged, HistoryIncomplete, Unavailable, VersionNotFound)
"""What a look into the history ends with that does not tell what is prepared: it stays, and takes no effect yet."""
Verdicts = dict[str, bool | None]
"""Of what is prepared, by its revision: it takes effect, it never will, or it stays."""
IN_DOUBT_S_MAX = 24 * 3600.0
"""After so long a change whose session never got its event is given up: its process was killed in between."""


async def prepare(view: AsyncNamespace[Any], place: Place, before: str, revision: str, deltas: Deltas) -> list[Of]:
    """Write what an event changes in its app's and its user's state beside these; return which of them it concerns.

    Where one of them cannot be written, or not as durably as it has to be, what is written of both is withdrawn.
    """
    changed: dict[Of, dict[str, Any]] = {"app": deltas.app, "user": deltas.user}
    concerned: list[Of] = [of for of, delta in changed.items() if delta]

    async def write(of: Of) -> None:
        name = place.app if of == "app" else place.user
        change = Prepared(place.head, before, platform_time.get_time(), kept(changed[of], 0, nul=False).data, "")

        async def with_it(state: State[Any] | None, over: str) -> Any:
            shared = place.shared(of) if state is None else await undecided(view, name, state)
            return _data(msgspec.structs.replace(shared, prepared={**shared.prepared, revision: change}), over)

        await view._update_state(name, with_it, reason=PREPARE)

    ended = await asyncio.gather(*map(write, concerned), return_exceptions=True)
    failed = [error for error in ended if error is not None]
    if failed:
        there = [error is None or isinstance(error, (DurabilityNotMet, OutcomeUnknown)) for error in ended]
        await withdraw(view, place, revision, [of for of, written in zip(concerned, there, strict=True) if written])
        raise failed[0]
    return concerned


async def resolve(view: AsyncNamespace[Any], place: Place, revision: str, prepared: Sequence[Of]) -> None:
    """Let what was prepared for a revision that the session has got take effect, unless others have done so."""
    await _decided(view, place, {revision: True}, prepared)


async def withdraw(view: AsyncNamespace[Any], place: Place, revision: str, prepared: Sequence[Of]) -> None:
    """Have what was prepared for a revision go that the session will not get; where that fails, a reader does it.

    Nobody waits until that is durable: what is prepared and in doubt takes no effect either.
    """
    with suppress(StateCacheError):
        await _decided(view, place, {revision: False}, prepared, level="memory")


async def _decided(
    view: AsyncNamespace[Any], place: Place, verdicts: Verdicts, prepared: Sequence[Of],
    level: Durability | None = None,
) -> None:  # fmt: skip
    """Carry verdicts out on the states of the app and of the user, side by side; raise the first error of both."""
    names = [place.app if of == "app" else place.user for of in prepared]
    ended = await asyncio.gather(*(_decide_last(view, name, verdicts, level) for name in names), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def _decide_last(view: AsyncNamespace[Any], name: str, verdicts: Verdicts, level: Durability | None) -> None:
    """Carry verdicts out on a state, behind all that has to take effect there by now."""
    try:
        await _decide(view, name, verdicts, by_itself=True, level=level)
    except _Unlooked as unlooked:  # what is prepared from now on may take effect later
        others = await _verdicts(view, unlooked.shared)
        before = {revision: verdict for revision, verdict in others.items() if revision not in verdicts}
        await _decide(view, name, {**before, **verdicts}, level=level)


class _Unlooked(Exception):
    """More is prepared, of which nobody has looked whether it takes effect."""

    def __init__(self, shared: Shared) -> None:
        super().__init__("more is prepared")
        self.shared = shared


async def states_of(view: AsyncNamespace[Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the states of apps and users by their names, with all that has taken effect there by now.

    Where that cannot be written, or not as durably as it has to be, a reader does not wait for it.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, state in (await view.get_many(dict.fromkeys(names), read="primary")).items():
        found[name] = {} if state is None else {**given((await _up_to_date(view, name, state)).state)}
    return found


async def _up_to_date(view: AsyncNamespace[Any], name: str, state: State[Any]) -> Shared:
    """Return a state with all that has taken effect there by now; where that cannot be known, as it is."""
    try:
        shared = await undecided(view, name, state)
    except _NOT_KNOWN:
        return read_shared(state)
    if not shared.prepared or not (verdicts := await _verdicts(view, shared)):
        return shared
    try:
        return await _decide(view, name, verdicts) or shared
    except _NOT_WRITTEN:
        return _carried_out(shared, verdicts)


async def _verdicts(view: AsyncNamespace[Any], shared: Shared) -> Verdicts:
    """Return of what is prepared what takes effect, what never will, and with None what was prepared for a creation.

    That stays, if it is still there: it may have taken effect since the state was read.
    """
    names = dict.fromkeys(change.session for change in shared.prepared.values())
    heads = await view.get_many(names, read="primary")
    verdicts: Verdicts = {}
    for revision, change in shared.prepared.items():
        head = heads[change.session]
        at = "" if head is None else read_head(head).revision
        if at == revision:
            verdicts[revision] = True
        elif change.before not in ("", at) or platform_time.get_time() > change.at + IN_DOUBT_S_MAX:
            verdicts[revision] = False
        elif not change.before:
            verdicts[revision] = None
    return verdicts


async def _decide(
    view: AsyncNamespace[Any], name: str, verdicts: Verdicts, *, by_itself: bool = False,
    level: Durability | None = None,
) -> Shared | None:  # fmt: skip
    """Carry verdicts out on what is still prepared, in their order; return the state, or None where there is none.

    Raises _Unlooked where something takes effect `by_itself` and more is prepared, which may have to do so before it.
    """

    async def decided(state: State[Any] | None, over: str) -> Any:
        if state is None or all(verdicts.get(revision) is None for revision in read_shared(state).prepared):
            raise Declined
        shared = await undecided(view, name, state)
        if all(verdicts.get(revision) is None for revision in shared.prepared):
            raise Declined
        if by_itself and any(verdicts.values()) and not shared.prepared.keys() <= verdicts.keys():
            raise _Unlooked(shared)
        return _data(_carried_out(shared, verdicts), over)

    state: State[Any] | None
    try:
        state = await view._update_state(name, decided, reason=RESOLVE, durability=level)
    except Declined:
        state = await view.get(name, read="primary")
    return None if state is None else read_shared(state)


def _carried_out(shared: Shared, verdicts: Verdicts) -> Shared:
    """Return a state with the verdicts carried out on what is prepared in it, in their order."""
    state = {**given(shared.state)}
    for revision, takes_effect in verdicts.items():
        if takes_effect and revision in shared.prepared:
            state |= given(shared.prepared[revision].state)
    left = {revision: change for revision, change in shared.prepared.items() if verdicts.get(revision) is None}
    return msgspec.structs.replace(shared, state=kept(state, 0, nul=False).data, prepared=left)


def _data(shared: Shared, over: str) -> Any:
    """Return what is written over a change: what is prepared names it, but for what an earlier release has prepared."""
    prepared = {
        revision: change if change.over is None else msgspec.structs.replace(change, over=over)
        for revision, change in shared.prepared.items()
    }
    return msgspec.to_builtins(msgspec.structs.replace(shared, prepared=prepared))
