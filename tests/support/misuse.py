"""Calls that cannot be meant, with a part of what each is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from statecache import Position, Set

KEY = "runs/42"
Call = Callable[[Any], Any]
_LATE = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
_EARLY = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
_BEYOND = (Position(2**63, 1), Position(1, 2**63 - 1))


async def _listed(client: Any, *prefix: Any, **how: Any) -> list[str]:
    return [state.key async for state in client.list(*prefix, **how)]


async def _history(client: Any, **bounds: Any) -> list[Any]:
    return [change async for change in client.history(KEY, **bounds)]


async def _waited_for_default(client: Any) -> Any:
    return await client.wait_durable(await client.get("runs/none", default=0))


MISUSES: list[tuple[str, Call]] = [
    ("set_many takes a dictionary of names and values, not this list", lambda c: c.set_many([1])),
    ("set_many takes a dictionary of names and values, not None", lambda c: c.set_many(None)),
    ("set_many takes a dictionary of names and values, not this str", lambda c: c.set_many("ab")),
    ("The key 1 cannot be used: it is a int", lambda c: c.set_many({1: 2})),
    ("wait_durable takes a State, as a write returns it, not None", lambda c: c.wait_durable(None)),
    ("wait_durable takes a State, as a write returns it, not this str", lambda c: c.wait_durable("x")),
    ("wait_durable takes a State that was stored", _waited_for_default),
    ("get_many takes names, not None", lambda c: c.get_many(None)),
    ("get_many takes names, not one text", lambda c: c.get_many(KEY)),
    ("delete_many takes names, not this int", lambda c: c.delete_many(5)),
    ("progress= takes a function, not this int", lambda c: c.delete_many([KEY], progress=5)),
    ("commit takes a list of writes, not None", lambda c: c.commit(None)),
    ("commit takes a list of writes, not this Set", lambda c: c.commit(Set(KEY, 1))),
    ("commit takes a list of writes, not this generator", lambda c: c.commit(one for one in [Set(KEY, 1)])),
    ("a commit is made of Set, Create", lambda c: c.commit([1])),
    ("warm takes names, not this int", lambda c: c.warm(5)),
    ("warm takes names, not None", lambda c: c.warm(None)),
    ("it is a list, not text", lambda c: c.warm([[KEY]])),
    ("min_version='a' is not a whole number from 0 up", lambda c: c.get(KEY, min_version="a")),
    ("min_version=-1 is not", lambda c: c.get(KEY, min_version=-1)),
    ("min_version=True is not", lambda c: c.get(KEY, min_version=True)),
    ("min_version=None is not", lambda c: c.get(KEY, min_version=None, read="fenced")),
    ("max_stale=x is for local reads, in seconds", lambda c: c.get(KEY, max_stale="x")),
    ("max_stale=x is for local reads, in seconds", lambda c: c.get_many([KEY], max_stale="x")),
    ("read [] is not one of local, primary, fenced", lambda c: c.get(KEY, read=[])),
    ("durability [] is not one of memory, replica", lambda c: c.set(KEY, 1, durability=[])),
    ("transact takes names, not one text", lambda c: c.transact(KEY, lambda tx: 1)),
    ("transact takes names, not None", lambda c: c.transact(None, lambda tx: 1)),
    ("transact takes a function, not None", lambda c: c.transact([KEY], None)),
    ("update takes a function, not this int", lambda c: c.update(KEY, 5)),
    ("The key None cannot be used: it is a NoneType", lambda c: c.changes(None)),
    ("The key 5 cannot be used: it is a int", lambda c: c.namespace("runs").watch(5)),
    ("limit=0 is not a whole number above 0", lambda c: _history(c, limit=0)),
    ("limit=-1 is not a whole number above 0", lambda c: _listed(c, "runs/", limit=-1)),
    ("compares with a text that holds a NUL", lambda c: _listed(c, "runs/", where={"a": "\0"})),
    ("The key None cannot be used: it is a NoneType", lambda c: _listed(c, None)),
    ("default= is a str, not a int", lambda c: c.namespace("runs", type=int).get("42", default="x")),
    ("since=datetime.datetime(9999, 12, 31", lambda c: _history(c, since=_LATE)),
    ("until=datetime.datetime(1, 1, 1", lambda c: _history(c, until=_EARLY)),
    ("is not within the years 1 to 9999 of UTC", lambda c: c.get_at(KEY, time=_LATE)),
    ("time=datetime.datetime(1, 1, 1", lambda c: c.get_group_at(KEY, time=_EARLY)),
    ("at=datetime.datetime(9999, 12, 31", lambda c: c.rollback(KEY, at=_LATE)),
    ("at=datetime.datetime(1, 1, 1", lambda c: c.rollback(KEY, at=_EARLY, group=True)),
    ("is not within the years 1 to 9999 of UTC", lambda c: c.diff(KEY, 1, _LATE)),
    ("position=Position(epoch=9223372036854775808, n=1) is not", lambda c: c.get_at(KEY, position=_BEYOND[0])),
    ("is not a Position that a commit can have", lambda c: c.get_group_at(KEY, position=_BEYOND[1])),
    ("is not a Position that a commit can have", lambda c: c.diff(KEY, 1, _BEYOND[1])),
    ("to=Position(epoch=1, n=9223372036854775807) is not", lambda c: c.rollback(KEY, _BEYOND[1])),
    ("to=Position(epoch=9223372036854775808, n=1) is not", lambda c: c.rollback(KEY, _BEYOND[0], group=True)),
    ("is not a Position that a commit can have", lambda c: c.branch(KEY, "runs/43", at=_BEYOND[0])),
    ("is not a Position that a commit can have", lambda c: c.outcome("abcdefgh", KEY, position=_BEYOND[0])),
    ("position='1-2' is not a Position", lambda c: c.outcome("abcdefgh", KEY, position="1-2")),
]


async def _entered(block: Any) -> None:
    async with block:
        raise AssertionError


AFTER_CLOSE: list[Call] = [
    lambda c: c.set_many({}),
    lambda c: c.get_many([]),
    lambda c: c.delete_many([]),
    lambda c: c.warm([]),
    lambda c: c.lost(),
    lambda c: c.get(KEY),
    lambda c: c.exists(KEY),
    lambda c: _listed(c, "runs/"),
    lambda c: _entered(c.lock(KEY)),
    lambda c: c.step(KEY, "s", lambda step: 1),
]
"""What a closed client refuses, whether or not it had to ask a server."""
