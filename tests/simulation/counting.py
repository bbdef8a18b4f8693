"""The part of the machine in which clients count and collect, on keys of their own.

What a change ought to be follows from the one before it. Nothing conflicts; a request or reply that is lost counts
once, however many others have counted meanwhile; a change_id that is used again gives what it has made, or is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from statecache import AsyncStateCache, ChangeIdReused
from tests.simulation.expectation import Change
from tests.simulation.history import Modifier
from tests.simulation.modifier_verbs import made, mutation
from tests.simulation.refusals import CLIENTS
from tests.simulation.sharing import Sharing
from tests.simulation.wires import Lost as LostPart
from tests.simulation.wires import Wire

KINDS = {"counts/1": "number", "counts/2": "number", "counts/1/list": "list", "counts/2/list": "list"}
MODIFIED = st.sampled_from([*KINDS])
NUMBERS = st.sampled_from((1, 2, -1, 2**53, -(2**53), 10**10))
ITEMS = st.lists(st.sampled_from((1, 11, "a", 'a",', ["a"], None)), min_size=1, max_size=2)


@st.composite
def modifiers(draw: st.DrawFn) -> tuple[str, Modifier]:
    """Draw a key and a modifier of what stands there."""
    key = draw(MODIFIED)
    if KINDS[key] == "number":
        return key, ("increment", draw(NUMBERS))
    return key, (draw(st.sampled_from(("append", "add", "remove"))), draw(ITEMS))


class Counting(Sharing):
    """The rules of counters and collections."""

    wires: list[Wire]

    async def _modifier(self, client: AsyncStateCache, key: str, modifier: Modifier, **more: Any) -> Any:
        given = (modifier[1],) if modifier[0] == "increment" else modifier[1]
        return await getattr(client, modifier[0])(key, *given, **more)

    async def _modified(self, client: AsyncStateCache, key: str, modifier: Modifier) -> None:
        value = made(modifier, self.expected.value(key))
        self.expected.took(key, "set", value, await self._modifier(client, key, modifier))

    @rule(who=CLIENTS, one=modifiers())
    def modifier(self, who: int, one: tuple[str, Modifier]) -> None:
        self.run(self._modified(self.clients[who], *one))

    @rule(who=CLIENTS, number=NUMBERS, items=ITEMS)
    def modifier_two(self, who: int, number: int, items: list[Any]) -> None:
        self.run(self._modifier_two(self.clients[who], number, items))

    async def _modifier_two(self, client: AsyncStateCache, number: int, items: list[Any]) -> None:
        modifiers: dict[str, Modifier] = {"counts/1": ("increment", number), "counts/1/list": ("append", items)}
        values = {key: made(modifier, self.expected.value(key)) for key, modifier in modifiers.items()}
        states = await client.commit([mutation(key, modifier) for key, modifier in modifiers.items()])
        for (key, value), state in zip(values.items(), states, strict=True):
            assert state is not None
            self.expected.took(key, "set", value, state)

    @rule(who=CLIENTS, key=MODIFIED)
    def delete_what_was_modified(self, who: int, key: str) -> None:
        self.run(self._delete_modified(self.clients[who], key))

    async def _delete_modified(self, client: AsyncStateCache, key: str) -> None:
        state = await client.delete(key)
        assert (state is not None) == self.expected.exists(key)
        if state is not None:
            self.expected.took(key, "delete", None, state)

    @rule(who=CLIENTS, one=modifiers(), lost=st.sampled_from(("request", "reply")), between=st.integers(0, 8))
    def lose_a_modifier(self, who: int, one: tuple[str, Modifier], lost: LostPart, between: int) -> None:
        self.run(self._lose_modifier(who, *one, lost, between))

    async def _lose_modifier(self, who: int, key: str, modifier: Modifier, lost: LostPart, between: int) -> None:
        other, first = self.clients[1 - who], list[Any]()

        async def meanwhile(applied: bool) -> None:
            if applied:
                first.append(made(modifier, self.expected.value(key)))
                self.expected.applied(key, Change("set", first[0], ""))
            for _ in range(between):
                await self._modified(other, key, modifier)

        self.wires[who].arm(lost, meanwhile)
        state = await self._modifier(self.clients[who], key, modifier)
        value = first[0] if first else made(modifier, self.expected.value(key))
        self.expected.took(key, "set", value, state)
        assert not self.wires[who].armed

    @rule(who=CLIENTS, one=modifiers(), back=st.integers(0, 9))
    def modifier_under_a_used_change_id(self, who: int, one: tuple[str, Modifier], back: int) -> None:
        key, modifier = one
        chain = self.expected.chain(key)
        if back < len(chain) and chain[-1 - back].change_id:
            self.run(self._modifier_again(self.clients[who], key, modifier, len(chain) - 1 - back))

    async def _modifier_again(self, client: AsyncStateCache, key: str, modifier: Modifier, at: int) -> None:
        """Use it for a modifier that may be another one: it is told from it by what it would have made."""
        chain = self.expected.chain(key)
        before, change = chain[at - 1].value if at else None, chain[at]
        if KINDS[key] == "number" and change.op == "set" and modifier[1] > 0:
            number: Any = change.value
            modifier = ("increment", number - (before or 0))  # the very one
        if change.op == "set" and made(modifier, before) == change.value and modifier[0] in ("increment", "append"):
            state = await self._modifier(client, key, modifier, change_id=change.change_id)
            assert (state.version, state.change_id, state.value) == (at + 1, change.change_id, change.value)
        elif change.op == "delete" or made(modifier, before) != change.value:
            with pytest.raises(ChangeIdReused) as refused:
                await self._modifier(client, key, modifier, change_id=change.change_id)
            assert (refused.value.key, refused.value.version) == (key, at + 1)
