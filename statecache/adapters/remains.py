"""What remains of a deleted conversation that had more pages than one commit takes: its process was killed in between.

The commit that deletes the head is the first, so nobody sees the pages that remain, and who deletes the same again
finds no head. That is when they are looked for: a conversation that is there is deleted without a look.

Pages are told by their names, `[LOG/]NUMBER` below the head. What else stands there is no part of the conversation: a
named checkpoint of a page, by which it can be gone back to, or a step of a run.
"""

from __future__ import annotations

import re

from statecache import PostgresUnavailable
from statecache.adapters.plans import Plan, call, proven

_page = re.compile("(?:[0-9a-f]+/)?[0-9]{6,}").fullmatch


def remains(below: str) -> Plan[list[str]]:
    """Return the names of the pages that are there; none where Postgres cannot be asked, which is no reason to fail."""
    try:
        states = yield from call("list", below, values=False)
    except PostgresUnavailable:
        return []
    names = [state.key.partition("/")[2] for state in states]
    return [name for name in names if _page(name.removeprefix(below))]


def delete_remains(head: str, below: str, reason: str) -> Plan[None]:
    """Delete the pages below a head that is gone, which no later head names: one that is there by now keeps its own.

    Then wait until all that is gone is as durable as a write has to be: who deleted it may not have learnt that.
    """
    names = yield from remains(below)
    if names and (yield from call("get", head, read="primary")) is None:
        yield from call("delete_many", names, reason=reason)
    yield from proven(head, below=[below])
