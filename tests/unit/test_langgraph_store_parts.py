"""A store's names, filters, documents, vectors and batches: what they decide by themselves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from functools import partial
from operator import eq
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as some
from langgraph.store.base import PutOp

from statecache import LimitExceeded, UsageError
from statecache.adapters.langgraph.batching import Again, Batch, Queue, ask
from statecache.adapters.langgraph.store.documents import document
from statecache.adapters.langgraph.store.filters import Wanted, refuse_negative
from statecache.adapters.langgraph.store.items import Put, last_of_each
from statecache.adapters.langgraph.store.names import (
    group,
    group_of,
    item_name,
    namespace_of,
    range_of,
)
from statecache.adapters.langgraph.store.vectors import Index
from statecache.keys import checked_key
from tests.support.langgraph_items import Letters

LABEL = some.text(some.characters(blacklist_characters="\0."), min_size=1, max_size=130)
NAMESPACE = some.lists(LABEL, min_size=1, max_size=5).map(tuple)
KEY = some.text(some.characters(blacklist_characters="\0"), max_size=200)
SPACE = "langgraph-store/"


def within(prefix: tuple[str, ...], name: str) -> bool:
    """Tell whether a listing of a prefix gives a name."""
    bounds = range_of(prefix)
    if not name.startswith(bounds.prefix):
        return False
    return (bounds.after is None or name > bounds.after) and (bounds.before is None or name < bounds.before)


def test_names_can_be_read() -> None:
    assert item_name(("users", "ada"), "prefs") == "users.ada/prefs"
    assert item_name(("a/b", "用户 1"), "c/d") == "a%2Fb.用户%201/c%2Fd"
    assert item_name(("a",), "") == "a/-"
    with pytest.raises(UsageError, match="NUL"):
        item_name(("a",), "b\0")


@given(NAMESPACE, KEY, NAMESPACE, KEY)
def test_two_items_never_have_one_name(one: tuple[str, ...], key: str, other: tuple[str, ...], key_2: str) -> None:
    first, second = item_name(one, key), item_name(other, key_2)
    assert (first == second) is ((one, key) == (other, key_2))
    assert checked_key(SPACE + first).split("/")[1:] == [group_of(first), first.split("/")[1]]
    assert namespace_of(group(one)) in (one, None)


@given(NAMESPACE, NAMESPACE, KEY)
def test_a_range_holds_what_lies_below_a_prefix_and_no_more_unless_it_says_so(
    one: tuple[str, ...], other: tuple[str, ...], key: str
) -> None:
    for prefix in [(), one[:1], one, (*one, *other)]:
        for namespace in [one, other, (*one, *other), (one[0] + "0", *one[1:]), (one[0] + "x", *other)]:
            is_below, is_listed = namespace[: len(prefix)] == prefix, within(prefix, item_name(namespace, key))
            assert is_listed or not is_below
            assert is_below or not is_listed or not range_of(prefix).exact


def test_a_filter_tells_postgres_what_equals_something() -> None:
    wanted = Wanted({"a": 1, "b": {"$eq": "x"}, "c": {"d": None, "e": {"$gt": 2}}, "f.g": 1, "h": [1], "": True})
    assert wanted.where == {"value.a": 1, "value.b": "x", "value.c.d": None}
    assert not wanted.is_told
    held: dict[str, Any] = {"c": {"e": 3}, "f.g": 1.0, "h": [1], "": True}
    assert wanted.meets(held)
    others: list[dict[str, Any]] = [
        {"c": {"e": 2}},
        {"c": {}},
        {"c": 3},
        {"f.g": True},
        {"h": [True]},
        {"h": [1, 1]},
        {"": 1},
    ]
    for other in others:
        assert not wanted.meets(held | other)
    many = Wanted({f"m{number}": number for number in range(20)})
    assert (len(many.where), many.is_told) == (16, False)
    assert Wanted(None).is_told
    assert Wanted({"a": {}}).meets({"a": {"b": 1}})
    assert not Wanted({"a": {}}).meets({"a": []})


@pytest.mark.parametrize(
    ("value", "wanted", "meets"),
    [
        (5, {"$gt": 4}, True), ("5", {"$gt": 4}, True), ("10", {"$gt": "9"}, True), ("b", {"$gt": "a"}, True),
        ("b", {"$gt": 1}, False), (True, {"$gt": 0}, False), (None, {"$lt": 1}, False), ([1], {"$lte": [1]}, False),
        ("nan", {"$lt": 1}, False), (2**53 + 1, {"$gt": 2**53}, True), ({"a": 1}, {"$eq": {"a": 1}}, True),
        ({"a": 1, "b": 2}, {"$eq": {"a": 1}}, False), ({"a": 1}, {"$ne": {"a": 2}}, True), (1, {"$ne": True}, True),
    ],
)  # fmt: skip
def test_operators_compare_numbers_as_numbers_and_texts_as_texts(value: Any, wanted: Any, meets: bool) -> None:
    assert Wanted({"x": wanted, "other": {"$ne": 0}}).meets({"x": value, "other": 1}) is meets
    assert not Wanted({"x": wanted}).meets({}) or Wanted({"x": wanted}).is_told


def test_pages_that_are_none_are_refused() -> None:
    for limit, offset in [(-1, 0), (1, -1), (1.5, 0)]:
        with pytest.raises(UsageError, match="not a whole number from 0 on"):
            refuse_negative(limit, offset)  # type: ignore[arg-type]


def test_values_are_plain_json_that_nobody_else_holds() -> None:
    class Color(StrEnum):
        RED = "red"

    class Size(IntEnum):
        SMALL = 1

    inner = [1]
    made = document(PutOp(("a",), "k", {"a": (Color.RED, Size.SMALL), "b": inner, "c": {Color.RED: 1.5}}, ttl=0.5))
    inner.append(2)
    assert made["value"] == {"a": ["red", 1], "b": [1], "c": {"red": 1.5}}
    assert made["ttl"] == 0.5
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    for value, told in [
        (math.inf, "value.x holds the number inf"), (2**64, "the number 18446744073709551616"), (b"", "a bytes"),
        ({1: 2}, "the member 1"), ("\0", "a NUL"), ("\ud800", "half of a surrogate"), (deep, "more than 100 levels"),
        ({"y": [object()]}, r"value.x.y\[0\] holds a object"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=told):
            document(PutOp(("a",), "k", {"x": value}))
    with pytest.raises(UsageError, match="a dictionary, not a list"):
        document(PutOp(("a",), "k", [1]))  # type: ignore[arg-type]
    for ttl in (0, -1, math.nan, math.inf, cast("float", "5")):
        with pytest.raises(UsageError, match="is not a number of minutes"):
            document(PutOp(("a",), "k", {}, ttl=ttl))
    with pytest.raises(LimitExceeded, match="an item is 9,"):
        Put(PutOp(("a",), "k", {"x": "x" * 9_000_000}), None)


def test_an_index_embeds_the_fields_that_it_names_or_the_put() -> None:
    letters = Letters()
    index = Index({"dims": 26, "embed": letters, "fields": ["a", "b[*].c"]})
    value = {"a": "one", "b": [{"c": "two"}, {"c": "three"}], "d": "four"}
    assert index.texts_of(PutOp(("x",), "k", value)) == {"a": "one", "b[*].c.0": "two", "b[*].c.1": "three"}
    assert index.texts_of(PutOp(("x",), "k", value, index=["d"])) == {"d": "four"}
    assert index.texts_of(PutOp(("x",), "k", value, index=False)) == {}
    assert Index({"dims": 26, "embed": letters}).texts_of(PutOp(("x",), "k", {"a": 1})) == {"$": '{"a": 1}'}
    with pytest.raises(UsageError, match="26 dimensions, and `dims` is 25"):
        Index({"dims": 25, "embed": letters}).embed(["x"])
    with pytest.raises(UsageError, match="1 vectors of 2 texts"):
        Index({"dims": 1, "embed": lambda _: [[1.0]]}).embed(["x", "y"])
    with pytest.raises(UsageError, match="`dims`"):
        Index({"embed": letters})
    first, last = (Put(PutOp(("x",), "k", {"n": number}), None) for number in range(2))
    assert last_of_each([first, last]) == [last]


async def test_calls_of_one_moment_are_a_batch_and_those_that_come_meanwhile_the_next() -> None:
    batches: list[list[int]] = []
    begun, asked, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        batches.append(calls := batch.wanted())
        begun.set()
        await gate.wait()
        return [ValueError(call) if call == 13 else call * 2 for call in calls]

    queue: Queue[int, int] = Queue(carry_out, batch_max=10, in_flight_max=1)
    first = [asyncio.create_task(queue.ask([number])) for number in range(3)]
    await begun.wait()
    more = [asyncio.create_task(queue.ask([number, number + 100])) for number in range(3, 14)]
    asyncio.get_running_loop().call_soon(asked.set)  # when all of them have begun
    await asked.wait()
    more[0].cancel()
    gate.set()
    assert await asyncio.gather(*first) == [[0], [2], [4]]
    answers = await asyncio.gather(*more, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:-1] == [[2 * number, 2 * number + 200] for number in range(4, 13)]
    assert isinstance(answers[-1], ValueError)
    assert [len(batch) for batch in batches] == [3, 10, 10]
    assert 3 not in batches[1]


async def test_whatever_hinders_a_batch_is_told_to_all_who_wait() -> None:
    async def fails(batch: Batch[int, int]) -> Sequence[int | Exception]:
        raise ValueError(len(batch.wanted()))

    queue: Queue[int, int] = Queue(fails, batch_max=10, in_flight_max=2)
    answers = await asyncio.gather(*(queue.ask([number]) for number in range(4)), return_exceptions=True)
    assert [str(one) for one in answers] == ["4"] * 4
    assert await queue.ask([]) == []


@pytest.mark.parametrize("again", [0, 2])
async def test_who_gives_up_a_call_that_is_being_written_waits_for_it(again: int) -> None:
    begun, gate, written = asyncio.Event(), asyncio.Event(), list[int]()

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        calls = batch.begin_to_write()
        begun.set()
        await gate.wait()
        written.extend(calls)
        return calls

    queue: Queue[int, int] = Queue(carry_out, batch_max=2, in_flight_max=1)
    task = asyncio.create_task(queue.ask([1, 2, 3]))
    await begun.wait()
    for _ in range(1 + again):
        task.cancel()
        await turns()
        assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (written, queue.is_idle) == ([1, 2], True)  # the third had not begun


async def test_who_gives_up_a_call_before_it_is_written_leaves_it_out() -> None:
    begun, gate, written = asyncio.Event(), asyncio.Event(), list[int]()

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        begun.set()
        await gate.wait()
        written.extend(calls := batch.begin_to_write())
        return calls

    queue: Queue[int, int] = Queue(carry_out, batch_max=2, in_flight_max=1)
    given_up, other = (asyncio.create_task(queue.ask([number])) for number in (1, 2))
    await begun.wait()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    gate.set()
    assert (await other, written) == ([2], [2])


async def test_a_batch_that_nobody_waits_for_any_more_is_cancelled_and_the_next_one_begins() -> None:
    batches, ended = list[list[int]](), asyncio.Event()

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        batches.append(calls := batch.wanted())
        if 1 in calls:
            try:
                await asyncio.Future[None]()
            finally:
                ended.set()
        return calls

    queue: Queue[int, int] = Queue(carry_out, batch_max=2, in_flight_max=1)
    one, two, three = (asyncio.create_task(queue.ask([number])) for number in (1, 2, 3))
    for given_up in (one, two):
        await turns()
        assert (batches, ended.is_set()) == ([[1, 2]], False)
        given_up.cancel()
    await turns()
    assert (batches, ended.is_set(), three.done()) == ([[1, 2], [3]], True, True)
    assert await three == [3]
    for given_up in (one, two):
        with pytest.raises(asyncio.CancelledError):
            await given_up


async def test_a_call_that_is_to_be_carried_out_again_goes_before_those_that_wait() -> None:
    batches: list[list[int]] = []

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        batches.append(calls := batch.wanted())
        return [Again() if len(calls) > at + 1 else call for at, call in enumerate(calls)]

    queue: Queue[int, int] = Queue(carry_out, batch_max=3, in_flight_max=1)
    assert await asyncio.gather(*(queue.ask([number]) for number in range(5))) == [[number] for number in range(5)]
    assert batches == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1], [0]]
    assert queue.is_idle


async def test_a_cancelled_scope_of_anyio_waits_at_rest_for_what_several_queues_write() -> None:
    """Such a scope cancels again and again whoever does not end, and with it the tasks that it waits for."""
    gate, scopes = asyncio.Event(), list[anyio.CancelScope]()

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        calls = batch.begin_to_write()
        await gate.wait()
        return calls

    async def work() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await ask({Queue(carry_out, batch_max=2, in_flight_max=1): [number] for number in range(3)})

    task = asyncio.create_task(work())
    await turns()
    scopes[0].cancel()
    await turns()
    await turns()
    assert (task.done(), task.cancelling()) == (False, 1)
    gate.set()
    await task
    assert scopes[0].cancelled_caught


async def test_it_is_told_when_no_call_that_is_meant_is_left() -> None:
    gates = {number: asyncio.Event() for number in range(3)}

    async def carry_out(batch: Batch[int, int]) -> Sequence[int | Exception]:
        calls = batch.begin_to_write()
        await gates[calls[0]].wait()
        return calls

    queue: Queue[int, int] = Queue(carry_out, batch_max=1, in_flight_max=1)
    await queue.until_none(bool)
    asked = [asyncio.create_task(queue.ask([number])) for number in range(3)]
    await turns()
    asked[0].cancel()  # which writes, and is waited for
    waiting = [asyncio.create_task(queue.until_none(partial(eq, at))) for at in range(4)]
    for number in range(3):
        await turns()
        assert [one.done() for one in waiting] == [at < number or at == 3 for at in range(4)]
        gates[number].set()
    await asyncio.gather(*waiting)
    assert [one.result() for one in asked[1:]] == [[1], [2]]


async def turns() -> None:
    """Let the event loop take some turns."""
    for _ in range(10):
        await asyncio.sleep(0)
