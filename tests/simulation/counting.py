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
from tests.simulation.history import Merge
from tests.simulation.merge_verbs import made, mutation
from tests.simulation.refusals import CLIENTS
from tests.simulation.sharing import Sharing
from tests.simulation.wires import Lost as LostPart
from tests.simulation.wires import Wire

KINDS = {"counts/1": "number", "counts/2": "number", "counts/1/list": "list", "counts/2/list": "list"}
MERGED = st.sampled_from([*KINDS])
NUMBERS = st.sampled_from((1, 2, -1, 2**53, -(2**53), 10**10))
ITEMS = st.lists(st.sampled_from((1, 11, "a", 'a",', ["a"], None)), min_size=1, max_size=2)


@st.composite
def merges(draw: st.DrawFn) -> tuple[str, Merge]:
    """Draw a key and a merge of what stands there."""
    key = draw(MERGED)
    if KINDS[key] == "number":
        return key, ("increment", draw(NUMBERS))
    return key, (draw(st.sampled_from(("append", "add", "remove"))), draw(ITEMS))


class Counting(Sharing):
    """The rules of counters and collections."""

    wires: list[Wire]

    async def _merge(self, client: AsyncStateCache, key: str, merge: Merge, **more: Any) -> Any:
        given = (merge[1],) if merge[0] == "increment" else merge[1]
        return await getattr(client, merge[0])(key, *given, **more)

    async def _merged(self, client: AsyncStateCache, key: str, merge: Merge) -> None:
        value = made(merge, self.expected.value(key))
        self.expected.took(key, "set", value, await self._merge(client, key, merge))

    @rule(who=CLIENTS, one=merges())
    def merge(self, who: int, one: tuple[str, Merge]) -> None:
        self.run(self._merged(self.clients[who], *one))

    @rule(who=CLIENTS, number=NUMBERS, items=ITEMS)
    def merge_two(self, who: int, number: int, items: list[Any]) -> None:
        self.run(self._merge_two(self.clients[who], number, items))

    async def _merge_two(self, client: AsyncStateCache, number: int, items: list[Any]) -> None:
        merges: dict[str, Merge] = {"counts/1": ("increment", number), "counts/1/list": ("append", items)}
        values = {key: made(merge, self.expected.value(key)) for key, merge in merges.items()}
        states = await client.commit([mutation(key, merge) for key, merge in merges.items()])
        for (key, value), state in zip(values.items(), states, strict=True):
            assert state is not None
            self.expected.took(key, "set", value, state)

    @rule(who=CLIENTS, key=MERGED)
    def delete_what_was_merged(self, who: int, key: str) -> None:
        self.run(self._delete_merged(self.clients[who], key))

    async def _delete_merged(self, client: AsyncStateCache, key: str) -> None:
        state = await client.delete(key)
        assert (state is not None) == self.expected.exists(key)
        if state is not None:
            self.expected.took(key, "delete", None, state)

    @rule(who=CLIENTS, one=merges(), lost=st.sampled_from(("request", "reply")), between=st.integers(0, 8))
    def lose_a_merge(self, who: int, one: tuple[str, Merge], lost: LostPart, between: int) -> None:
        self.run(self._lose_merge(who, *one, lost, between))

    async def _lose_merge(self, who: int, key: str, merge: Merge, lost: LostPart, between: int) -> None:
        other, first = self.clients[1 - who], list[Any]()

        async def meanwhile(applied: bool) -> None:
            if applied:
                first.append(made(merge, self.expected.value(key)))
                self.expected.applied(key, Change("set", first[0], ""))
            for _ in range(between):
                await self._merged(other, key, merge)

        self.wires[who].arm(lost, meanwhile)
        state = await self._merge(self.clients[who], key, merge)
        value = first[0] if first else made(merge, self.expected.value(key))
        self.expected.took(key, "set", value, state)
        assert not self.wires[who].armed

    @rule(who=CLIENTS, one=merges(), back=st.integers(0, 9))
    def merge_under_a_used_change_id(self, who: int, one: tuple[str, Merge], back: int) -> None:
        key, merge = one
        chain = self.expected.chain(key)
        if back < len(chain) and chain[-1 - back].change_id:
            self.run(self._merge_again(self.clients[who], key, merge, len(chain) - 1 - back))

    async def _merge_again(self, client: AsyncStateCache, key: str, merge: Merge, at: int) -> None:
        """Use it for a merge that may be another one: it is told from it by what it would have made."""
        chain = self.expected.chain(key)
        before, change = chain[at - 1].value if at else None, chain[at]
        if KINDS[key] == "number" and change.op == "set" and merge[1] > 0:
            number: Any = change.value
            merge = ("increment", number - (before or 0))  # the very one
        if change.op == "set" and made(merge, before) == change.value and merge[0] in ("increment", "append"):
            state = await self._merge(client, key, merge, change_id=change.change_id)
            assert (state.version, state.change_id, state.value) == (at + 1, change.change_id, change.value)
        elif change.op == "delete" or made(merge, before) != change.value:
            with pytest.raises(ChangeIdReused) as refused:
                await self._merge(client, key, merge, change_id=change.change_id)
            assert (refused.value.key, refused.value.version) == (key, at + 1)
