"""What a session does with counters and collections, and what each of these changes has to have made.

They are keys of their own, on which nothing else is done but reading and, now and then, deleting. A modifier is noted
with its argument: so whatever stood before it, its value can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from statecache import Add, Append, Increment, Remove
from tests.simulation.history import Invoke, Modifier

COUNTERS = ("runs/1/count", "users/a/count")
LISTS = ("runs/1/log", "runs/2/log")
SETS = ("runs/1/tags", "runs/3/tags")
MODIFIED = (*COUNTERS, *LISTS, *SETS)
VERBS = {"increment": 12, "append": 6, "add": 4, "remove": 3, "commit_modifiers": 3, "get_modified": 6}
OF = {"increment": COUNTERS, "append": LISTS, "add": SETS, "remove": SETS}
MEMBERS = 12
"""How many members a set may have, so that many are added that are there, and removed that are not."""


def made(modifier: Modifier, before: Any) -> Any:
    """Return what a modifier has to make of what was there; None is nothing."""
    verb, argument = modifier
    if verb == "increment":
        return (before or 0) + argument
    there = before or []
    if verb == "append":
        return there + list(argument)
    if verb == "add":
        for item in argument:
            there = there if item in there else [*there, item]
        return there
    return [item for item in there if item not in argument]


class ModifierVerbs:
    """The verbs of counters and collections, of a session."""

    _rng: Random
    _begin: Callable[..., Invoke]
    _name: str
    _get: Callable[..., Any]
    _delete: Callable[..., Any]
    _lasting: Callable[[], dict[str, float]]
    _written: Callable[..., Any]
    _sent_again: Callable[..., Any]

    async def _increment(self, _: str) -> None:
        await self._modifier("increment")

    async def _append(self, _: str) -> None:
        await self._modifier("append")

    async def _add(self, _: str) -> None:
        await self._modifier("add")

    async def _remove(self, _: str) -> None:
        await self._modifier("remove")

    async def _get_modified(self, _: str) -> None:
        await self._get(self._rng.choice(MODIFIED))

    async def _modifier(self, verb: str) -> None:
        """Change a counter or a collection, or delete it now and then."""
        key, rng = self._rng.choice(OF[verb]), self._rng
        if rng.random() < 0.03:
            await self._delete(key)
            return
        modifier = self._drawn(verb)
        sent = self._begin(verb, [key], "write", own_id=rng.random() < 0.5, modifiers={key: modifier})
        given = (modifier[1],) if verb == "increment" else modifier[1]
        await self._written(sent, *given, **self._lasting())

    def _drawn(self, verb: str) -> Modifier:
        rng = self._rng
        if verb == "increment":
            return verb, rng.choice((1, 1, 1, -1, 10**10, -(10**10), rng.randint(-(2**40), 2**40)))
        if verb == "append":
            return verb, [f'{self._name}-{rng.getrandbits(40):x}",[' for _ in range(rng.randint(1, 3))]
        return verb, [f'member "{rng.randint(1, MEMBERS)}",[]' for _ in range(rng.randint(1, 3))]

    async def _commit_modifiers(self, _: str) -> None:
        """Change all that there is in one group, in one commit."""
        verbs = {COUNTERS[0]: "increment", LISTS[0]: "append", SETS[0]: self._rng.choice(("add", "remove"))}
        modifiers = {key: self._drawn(verb) for key, verb in verbs.items()}
        sent = self._begin(
            "commit_modifiers", [*modifiers], "write", own_id=self._rng.random() < 0.5, modifiers=modifiers
        )
        await self._sent_again(sent, [mutation(key, modifier) for key, modifier in modifiers.items()])


def mutation(key: str, modifier: Modifier) -> Any:
    """Return a modifier as a part of a commit."""
    verb, argument = modifier
    many: Mapping[str, Callable[[str, Sequence[Any]], Any]] = {"append": Append, "add": Add, "remove": Remove}
    return Increment(key, argument) if verb == "increment" else many[verb](key, argument)
