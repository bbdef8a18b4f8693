"""Counters and collections, told of both clients on a Redis in this process: what they take, give and refuse."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pytest

from statecache import (
    Add,
    Append,
    AsyncStateCache,
    ChangeIdReused,
    CodecError,
    Create,
    Delete,
    Increment,
    InvalidKey,
    LimitExceeded,
    Remove,
    Set,
    UsageError,
)
from statecache.entries import change_set
from statecache.rules.modifiers import INTEGER_MAX, INTEGER_MIN
from tests.fixtures.redis import FakeDeployment

KEY = "runs/42"
Cents = NewType("Cents", int)


class Job(msgspec.Struct, frozen=True):
    name: str
    tries: int = 0


class Level(IntEnum):
    LOW = 1


def _raw(fake: FakeDeployment, key: str) -> bytes:
    value: bytes = fake.redis.hget(fake.keys.state(key), "value")
    return value


async def test_an_increment_begins_at_0_and_is_a_change_like_any_other(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    first = await fake_cache.increment(KEY, actor="planner", reason="one more")
    second = await fake_cache.increment(KEY, by=-3)
    assert (first.value, first.version, second.value, second.version) == (1, 1, -2, 2)
    assert second.parent_change_id == first.change_id
    assert await fake_cache.get(KEY) == second
    entries = fake.redis.xrange(fake.keys.changes(fake.keys.shard(KEY)))
    sets = [change_set(number, [part for pair in fields.items() for part in pair]) for number, fields in entries]
    assert [(one.changes[0].op, one.changes[0].value) for one in sets] == [("set", b"1"), ("set", b"-2")]
    assert (sets[0].actor, sets[0].reason) == ("planner", "one more")


async def test_numbers_stay_exact_to_the_last_one_and_beyond_is_refused(
    fake_cache: AsyncStateCache, fake: FakeDeployment
) -> None:
    await fake_cache.set(KEY, 2**53)
    assert (await fake_cache.increment(KEY)).value == 2**53 + 1
    top = await fake_cache.increment(KEY, INTEGER_MAX - 2**53 - 1)
    assert top.value == INTEGER_MAX
    with pytest.raises(CodecError, match=r"'runs/42' cannot be incremented at \$: the sum is beyond 64 bits"):
        await fake_cache.increment(KEY)
    assert await fake_cache.get(KEY) == top
    assert (await fake_cache.increment(KEY, INTEGER_MIN)).value == -1
    assert _raw(fake, KEY) == b"-1"


async def test_what_is_appended_stands_behind_and_together(fake_cache: AsyncStateCache) -> None:
    assert (await fake_cache.append(KEY, "a", {"b": [1, None]})).value == ["a", {"b": [1, None]}]
    assert (await fake_cache.append(KEY, [])).value == ["a", {"b": [1, None]}, []]
    assert (await fake_cache.append("runs/43", (1, 2))).value == [[1, 2]]


async def test_what_is_added_is_there_once_and_what_is_removed_not_at_all(fake_cache: AsyncStateCache) -> None:
    assert (await fake_cache.add(KEY, "a", "b", "a")).value == ["a", "b"]
    twice = await fake_cache.add(KEY, "b", "c")
    assert twice.value == ["a", "b", "c"]
    same = await fake_cache.add(KEY, "c")
    assert (same.value, same.version) == (twice.value, twice.version + 1)
    assert (await fake_cache.remove(KEY, "b", "z")).value == ["a", "c"]
    assert (await fake_cache.remove(KEY, "a", "c")).value == []
    assert (await fake_cache.remove("runs/43", "a")).value == []
    await fake_cache.set("runs/44", [1, 2, 1])
    assert (await fake_cache.remove("runs/44", 1)).value == [2]


async def test_typed_namespaces_give_their_types(fake_cache: AsyncStateCache, fake: FakeDeployment) -> None:
    assert (await fake_cache.namespace("n", type=int).increment("1", 2)).value == 2
    cents: Any = fake_cache.namespace("n", type=Cents)
    assert (await cents.increment("1", Cents(2))).value == 4
    jobs = fake_cache.namespace("jobs", type=list[Job])
    grown = await jobs.append("1", Job("a"), Job("b", 2))
    assert grown.value == [Job("a"), Job("b", 2)]
    assert await jobs.get("1") == grown
    assert grown.schema == (await jobs.set("2", [Job("a")])).schema
    tags = fake_cache.namespace("tags", type=set[str])
    assert (await tags.add("1", "x", "y")).value == {"x", "y"}
    assert (await tags.remove("1", "x")).value == {"y"}
    frozen = fake_cache.namespace("tags", type=frozenset[UUID])
    assert (await frozen.add("2", UUID(int=7))).value == frozenset({UUID(int=7)})
    assert (await frozen.add("2", UUID(int=7))).value == frozenset({UUID(int=7)})
    assert _raw(fake, "tags/2") == b'["00000000-0000-0000-0000-000000000007"]'
    line = fake_cache.namespace("lines", type=tuple[datetime, ...])
    assert (await line.append("1", datetime(2026, 1, 1, tzinfo=UTC))).value == (datetime(2026, 1, 1, tzinfo=UTC),)
    some: Any = fake_cache.namespace("some", type=list[int] | None)
    assert (await some.append("1", 5)).value == [5]


@pytest.mark.parametrize(
    ("kind", "verb", "reason"),
    [
        (Job, "increment", "increment is for whole numbers, and values here are of type Job"),
        (float, "increment", "of type float"),
        (bool, "increment", "of type bool"),
        (Level, "increment", "of type Level"),
        (Literal[1, 2], "increment", "Literal"),
        (Annotated[int, msgspec.Meta(ge=0)], "increment", "has limits that Redis does not know"),
        (dict[str, int], "append", "append is for lists, and values here are of type dict"),
        (set[str], "append", "of type set"),
        (tuple[int, str], "append", "of type tuple"),
        (Annotated[list[str], msgspec.Meta(max_length=3)], "append", "has limits"),
        (int, "add", "add is for sets or lists, and values here are of type int"),
        (Job, "remove", "remove is for sets or lists, and values here are of type Job"),
    ],
)
async def test_a_namespace_of_another_type_refuses_before_anything_is_sent(
    fake_cache: AsyncStateCache, kind: Any, verb: str, reason: str
) -> None:
    view = fake_cache.namespace("runs", type=kind)
    with pytest.raises(UsageError, match=reason):
        await getattr(view, verb)("42", 1)
    assert not await fake_cache.exists(KEY)


@pytest.mark.parametrize("encoding", ["msgpack", "raw"])
async def test_only_json_is_modified(fake_cache: AsyncStateCache, encoding: Any) -> None:
    view = fake_cache.namespace("runs", encoding=encoding)
    with pytest.raises(UsageError, match=f"stored as JSON, and these are stored as {encoding}"):
        await view.increment("42")
    await view.set("42", b"5")
    with pytest.raises(
        CodecError, match=f"appended to at \\$: it is stored as {encoding}, and only JSON can be modified"
    ):
        await fake_cache.append(KEY, 1)
    assert (await view.get("42")).version == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("encoding", ["json+zstd", "json2 until 99999999999999", "", "jso"])
async def test_an_encoding_that_is_not_known_is_not_taken_for_json(
    fake_cache: AsyncStateCache, fake: FakeDeployment, encoding: str
) -> None:
    await fake_cache.increment(KEY)
    fake.redis.hset(fake.keys.state(KEY), "encoding", encoding)
    with pytest.raises(CodecError, match="only JSON can be modified"):
        await fake_cache.increment(KEY)
    assert _raw(fake, KEY) == b"1"


@pytest.mark.parametrize(
    ("there", "verb", "item", "reason"),
    [
        ({"n": 1}, "increment", 1, "it holds an object, and not a whole number"),
        ("5", "increment", 1, "it holds text"),
        (True, "increment", 1, "it holds true"),
        (1.5, "increment", 1, "it holds a number that is not a whole one"),
        (None, "increment", 1, "it holds null"),
        (2**70, "increment", 1, "the sum is beyond 64 bits"),
        ({"a": []}, "append", 1, "cannot be appended to at .: it holds an object, and not an array"),
        ("[]", "append", 1, "it holds text"),
        (5, "add", 1, "cannot be added to at .: it holds a number"),
        (None, "remove", 1, "cannot be removed from at .: it holds null"),
    ],
)
async def test_what_is_there_and_is_something_else_is_left_as_it_is(
    fake_cache: AsyncStateCache, there: Any, verb: str, item: Any, reason: str
) -> None:
    before = await fake_cache.set(KEY, there)
    with pytest.raises(CodecError, match=reason):
        await getattr(fake_cache, verb)(KEY, item)
    assert await fake_cache.get(KEY) == before
    with pytest.raises(CodecError, match=reason):
        await fake_cache.commit([_mutation(verb, KEY, item), Set(f"{KEY}/plan", 1)])
    assert not await fake_cache.exists(f"{KEY}/plan")


def _mutation(verb: str, key: str, item: Any) -> Any:
    many = {"append": Append, "add": Add, "remove": Remove}
    return Increment(key, item) if verb == "increment" else many[verb](key, [item])


@pytest.mark.parametrize("by", [1.5, True, "1", None, 2**63, -(2**63) - 1])
async def test_only_whole_numbers_of_64_bits_are_counted_by(fake_cache: AsyncStateCache, by: Any) -> None:
    with pytest.raises(UsageError, match="is not a whole number of at most 64 bits"):
        await fake_cache.increment(KEY, by)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (1.5, "a float may be written in several ways"),
        ({"a": 1, "b": 2}, "its members have no order of their own"),
        ([{"a", "b"}], "its members have no order of their own"),
        (b"bytes", "bytes"),
        (math.inf, "."),
    ],
)
async def test_items_that_bytes_do_not_tell_apart_are_refused(
    fake_cache: AsyncStateCache, item: Any, reason: str
) -> None:
    for verb in ("add", "remove"):
        with pytest.raises(CodecError, match=reason):
            await getattr(fake_cache, verb)(KEY, item)
    assert not await fake_cache.exists(KEY)


async def test_items_are_of_the_namespaces_type(fake_cache: AsyncStateCache) -> None:
    numbers: Any = fake_cache.namespace("numbers", type=list[int])
    with pytest.raises(CodecError):
        await numbers.append("1", "x")
    jobs: Any = fake_cache.namespace("jobs", type=set[Job])
    with pytest.raises(CodecError):
        await jobs.add("1", "a")
    await jobs.add("1", {"name": "a"})
    await jobs.add("1", {"tries": 0, "name": "a"})
    assert (await jobs.add("1", Job("a"))).value == {Job("a")}
    assert len((await fake_cache.get("jobs/1")).value) == 1  # type: ignore[union-attr]
    assert (await fake_cache.remove("jobs/1", Job("a"))).value == []
    with pytest.raises(CodecError, match="not spelled as statecache spells it"):
        await fake_cache.append(KEY, msgspec.Raw(b" 1 "))
    with pytest.raises(UsageError, match="append was given no items"):
        await numbers.append("1")


async def test_a_value_that_would_become_too_large_is_refused_and_stays(fake_cache: AsyncStateCache) -> None:
    small = fake_cache.namespace("runs", value_bytes_max=30)
    before = await small.append("42", "x" * 20)
    with pytest.raises(LimitExceeded, match="the value is 37 bytes, more than the limit of 30 bytes") as refused:
        await small.append("42", "y" * 10)
    assert (refused.value.key, refused.value.actual) == (KEY, 37)
    assert await small.get("42") == before
    assert (await small.append("42", "y" * 3)).version == 2
    with pytest.raises(LimitExceeded):
        await small.append("42", "y" * 40)


async def test_an_end_is_kept_unless_the_call_or_the_namespace_says_another(fake_cache: AsyncStateCache) -> None:
    begun = await fake_cache.increment(KEY, ttl=3600)
    assert begun.expires_at == begun.updated_at.replace(microsecond=begun.updated_at.microsecond // 1000 * 1000) + (
        timedelta(hours=1)
    )
    kept = await fake_cache.increment(KEY)
    assert (kept.value, kept.expires_at) == (2, begun.expires_at)
    assert await fake_cache.get(KEY) == kept
    later = await fake_cache.namespace("runs", ttl=7200).increment("42")
    assert later.expires_at is not None
    assert kept.expires_at is not None
    assert later.expires_at > kept.expires_at + timedelta(minutes=59)
    assert (await fake_cache.increment(KEY, ttl=math.inf)).expires_at is None
    assert (await fake_cache.append("runs/43", 1)).expires_at is None


async def test_what_has_ended_or_is_deleted_is_begun_anew(fake_cache: AsyncStateCache, fake: FakeDeployment) -> None:
    await fake_cache.increment(KEY, 5, ttl=3600)
    fake.redis.hset(fake.keys.state(KEY), "encoding", "json until 1000")
    again = await fake_cache.increment(KEY)
    assert (again.value, again.version, again.expires_at) == (1, 2, None)
    await fake_cache.delete(KEY)
    assert (await fake_cache.append(KEY, "x")).value == ["x"]
    await fake_cache.delete(KEY)
    assert (await fake_cache.add(KEY, "y")).value == ["y"]


async def test_a_collection_of_two_schemas_says_so_and_loses_nothing(fake_cache: AsyncStateCache) -> None:
    plain = await fake_cache.append("jobs/1", {"name": "a", "more": 1})
    jobs = fake_cache.namespace("jobs", type=list[Job])
    mixed = await jobs.append("1", Job("b"))
    assert (plain.schema, mixed.schema) == ("", "")
    assert mixed.value == [Job("a"), Job("b")]
    assert (await fake_cache.get("jobs/1")).value[0] == {"name": "a", "more": 1}  # type: ignore[union-attr]


async def test_what_is_there_and_not_of_the_views_type_is_told_with_what_was_applied(
    fake_cache: AsyncStateCache,
) -> None:
    await fake_cache.set("jobs/1", ["no job"])
    jobs = fake_cache.namespace("jobs", type=list[Job])
    with pytest.raises(CodecError, match=r"cannot be decoded .*; change \w+ is applied to it all the same"):
        await jobs.append("1", Job("b"))
    found = await fake_cache.get("jobs/1")
    assert found is not None
    assert (found.version, found.value) == (2, ["no job", {"name": "b", "tries": 0}])


async def test_one_commit_takes_all_kinds_of_writes(fake_cache: AsyncStateCache) -> None:
    names = [f"{KEY}/{name}" for name in ("n", "log", "tags", "old", "plan", "new")]
    number, log, tags, old, plan, new = names
    for _ in range(2):
        await fake_cache.set(old, 1)
        states = await fake_cache.commit(
            [Increment(number, 5), Append(log, ["a", "b"]), Add(tags, ["x"]), Delete(old), Set(plan, 7), Increment(new)]
        )
        await fake_cache.commit([Remove(tags, ("y",)), Delete(new)])
    assert [state.value for state in states if state is not None] == [10, ["a", "b", "a", "b"], ["x"], None, 7, 1]
    assert [state.key for state in states if state is not None] == names
    assert len({state.position for state in states if state is not None}) == 1
    for name, state in zip(names, states, strict=True):
        if name not in (old, tags, new):
            assert await fake_cache.get(name) == state
    with pytest.raises(UsageError, match="items are a list, not a str"):
        await fake_cache.commit([Append(log, "abc")])
    with pytest.raises(InvalidKey):
        await fake_cache.commit([Increment(number), Increment("runs/43")])


async def test_a_modifier_may_end_a_key_in_one_commit_with_a_create(fake_cache: AsyncStateCache) -> None:
    states = await fake_cache.commit([Create(f"{KEY}/a", 1, assume_new=True), Increment(f"{KEY}/n", 2, ttl=60)])
    assert [state.value for state in states if state is not None] == [1, 2]
    assert states[1] is not None
    assert states[1].expires_at is not None


async def test_a_repeat_answers_as_the_first_and_another_modifier_is_told(fake_cache: AsyncStateCache) -> None:
    log = f"{KEY}/log"
    first = await fake_cache.increment(KEY, 5, change_id="first0001")
    appended = await fake_cache.append(log, "a", change_id="first0002", ttl=60)
    for others in range(4):
        assert await fake_cache.increment(KEY, 5, change_id="first0001") == first
        assert await fake_cache.append(log, "a", change_id="first0002", ttl=60) == appended
        for wrong in (
            fake_cache.increment(KEY, 6, change_id="first0001"),
            fake_cache.append(KEY, 5, change_id="first0001"),
            fake_cache.append(log, "b", change_id="first0002"),
            fake_cache.add(log, "a", change_id="first0002", ttl=60),
        ):
            with pytest.raises(ChangeIdReused):
                await wrong
        state = await fake_cache.increment(KEY)
        await fake_cache.add(log, f"{others}")
    assert state.value == 9
    with pytest.raises(ChangeIdReused):
        await fake_cache.set(KEY, 3, change_id="first0001")
    await fake_cache.set("runs/43", 5, change_id="first0003")
    with pytest.raises(ChangeIdReused):
        await fake_cache.increment("runs/43", 4, change_id="first0003")


async def test_a_repeat_of_a_modifier_asks_for_the_same_end(fake_cache: AsyncStateCache) -> None:
    ends = (None, 60, 9000)
    for name in ("increment", "append", "add", "remove"):
        verb: Any = getattr(fake_cache, name)
        for at, ttl in enumerate(ends):
            key, change_id = f"{KEY}/{name}/{ttl}", f"{name}0000{ttl}"
            first = await verb(key, 1, ttl=ttl, change_id=change_id)
            assert (first.expires_at is None) == (ttl is None)
            for _ in range(2):
                assert await verb(key, 1, ttl=ttl, change_id=change_id) == first
                for other in (*ends[:at], *ends[at + 1 :]):
                    with pytest.raises(ChangeIdReused):
                        await verb(key, 1, ttl=other, change_id=change_id)
                await verb(key, 2)
    await fake_cache.commit([Increment(f"{KEY}/n")], change_id="first0001")
    with pytest.raises(ChangeIdReused):
        await fake_cache.commit([Increment(f"{KEY}/n", ttl=60)], change_id="first0001")


@pytest.mark.parametrize("ttl", [None, 60])
async def test_a_modifier_of_a_release_before_is_answered_as_the_first(
    fake_cache: AsyncStateCache, fake: FakeDeployment, ttl: int | None
) -> None:
    """Those noted of none whether it was told its end."""
    first = await fake_cache.increment(KEY, 5, ttl=ttl, change_id="first0001")
    state = fake.keys.state(KEY)
    fake.redis.hset(state, "asked", fake.redis.hget(state, "asked").replace(b"~", b""))
    assert await fake_cache.increment(KEY, 5, ttl=ttl, change_id="first0001") == first
    with pytest.raises(ChangeIdReused):
        await fake_cache.increment(KEY, 5, ttl=9000, change_id="first0001")
