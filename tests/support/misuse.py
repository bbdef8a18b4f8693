"""Calls that cannot be meant, with a part of what each is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statecache import Set

KEY = "runs/42"
Call = Callable[[Any], Any]


async def _listed(client: Any, *prefix: Any, **how: Any) -> list[str]:
    return [state.key async for state in client.list(*prefix, **how)]


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
    ("compares with a text that holds a NUL", lambda c: _listed(c, "runs/", where={"a": "\0"})),
    ("The key None cannot be used: it is a NoneType", lambda c: _listed(c, None)),
    ("default= is a str, not a int", lambda c: c.namespace("runs", type=int).get("42", default="x")),
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
