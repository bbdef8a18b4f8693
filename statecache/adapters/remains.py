"""What remains of a deleted conversation that had more pages than one commit takes: its process was killed in between.

The commit that deletes the head is the first, so nobody sees the pages that remain, and who deletes the same again
finds no head. That is when they are looked for: a conversation that is there is deleted without a look.

Pages are told by their names, `[LOG/]NUMBER` below the head. What else stands there is no part of the conversation: a
named checkpoint of a page, by which it can be gone back to, or a step of a run.

A log whose first pages are written before its head has an opening, a page of the number 0, which the commit of the head
takes away. A process that was killed before that leaves both; who takes the opening away keeps such a head from coming.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from statecache import Delete, NotFound, PostgresUnavailable, VersionConflict
from statecache.adapters.plans import Plan, call, proven

if TYPE_CHECKING:
    from statecache import State

OPENING = 0
"""The number of the page that a log has as long as no head names it."""
_page = re.compile("(?:[0-9a-f]+/)?[0-9]{6,}").fullmatch


def remains(below: str) -> Plan[dict[str, State[Any]]]:
    """Return the pages that are there; none where Postgres cannot be asked, which is no reason to fail."""
    try:
        states = yield from call("list", below, values=False)
    except PostgresUnavailable:
        return {}
    named = {state.key.partition("/")[2]: state for state in states}
    return {name: state for name, state in named.items() if _page(name.removeprefix(below))}


def delete_remains(head: str, below: str, reason: str) -> Plan[None]:
    """Delete the pages below a head that is gone, which no later head names: one that is there by now keeps its own.

    Then wait until all that is gone is as durable as a write has to be: who deleted it may not have learnt that.
    """
    pages = yield from remains(below)
    if pages and (yield from call("get", head, read="primary")) is None:
        kept = set[str]()
        for name, state in pages.items():
            log, _, number = name.rpartition("/")
            if int(number) == OPENING and not (yield from _taken_away(name, state, reason)):
                kept.add(log)
        if gone := [name for name in pages if name.rpartition("/")[0] not in kept]:
            yield from call("delete_many", gone, reason=reason)
    yield from proven(head, below=[below])


def _taken_away(name: str, opening: State[Any], reason: str) -> Plan[bool]:
    """Take the opening of a log away, and return whether it was the one that was found: then nobody goes on with it."""
    try:
        yield from call("commit", [Delete(name, expected=opening)], reason=reason)
    except (NotFound, VersionConflict):
        return False
    return True
