"""Items as they are kept, how pages are filled, and what holds together: decided without a server."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from itertools import chain
from secrets import token_hex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from statecache import Create, Delete, LimitExceeded, Set, State
from statecache.adapters.filling import PAGE_BYTES_MAX, PAGE_ITEMS_MAX, WRITTEN_PAGES_MAX, filling
from statecache.adapters.items import NESTING_MAX, TEXT, Kept, kept, same
from statecache.adapters.items import given as got
from statecache.adapters.openai_agents.conversation import CROWDED
from statecache.adapters.openai_agents.pages import Place, added, cleared, popped
from statecache.adapters.pages import ATTEMPTS_MAX, LOGS_MAX, Found
from statecache.codec import codec_for
from statecache.model import VALUE_BYTES_MAX

TEXTS = some.text(some.characters(), max_size=6) | some.sampled_from([TEXT, "\ud83d", "\0", "2026-01-01 10:00:00"])
JSON: Any = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | TEXTS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SIZES = some.lists(some.integers(1, 40_000) | some.integers(1, 300), max_size=400)


@given(JSON)
def test_whatever_json_can_write_comes_back_exactly_from_what_states_hold(item: Any) -> None:
    data, size = kept(item, 0)
    stored, _ = codec_for(Any).encode([data], key="a/b", bytes_max=VALUE_BYTES_MAX)
    assert size == len(stored) - 2
    back = got(codec_for(Any).decode(stored, key="a/b")[0])
    assert json.dumps(back) == json.dumps(item)
    assert repr(back) == repr(json.loads(json.dumps(item)))


@given(JSON, JSON)
def test_items_are_the_same_if_they_are_written_alike(one: Any, other: Any) -> None:
    assert same(one, got(kept(one, 0).data))
    assert same(one, other) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@pytest.mark.parametrize(("one", "other"), [(0, False), (1, True), (1, 1.0), ([{"n": 0}], [{"n": False}]), (None, 0)])
def test_items_that_python_takes_for_equal_are_told_apart(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same({"a": one, "b": other}, {"b": other, "a": one})


def test_an_item_that_json_cannot_write_is_the_same_as_none() -> None:
    deep: Any = []
    for _ in range(100_000):  # deeper than any limit of Python's, to its own calls or to those in C
        deep = [deep]
    assert not same(deep, deep)


@pytest.mark.parametrize(
    "item", [{"role": "user", "content": "é\0"}, {"n": [1, 1.5, None, 2**63, -(2**63), 1e300]}, [], "x", 1]
)
def test_plain_data_is_kept_as_it_is(item: Any) -> None:
    assert kept(item, 0).data == item


def test_what_is_not_exact_is_kept_as_text() -> None:
    deep: Any = []
    for _ in range(NESTING_MAX):
        deep = [deep]
    for item in ({"a": "\ud83d"}, {"a": -math.inf}, {"a": math.inf}, {TEXT: "x"}, {TEXT: 1, "a": 2}, deep):
        assert kept(item, 0).data == {TEXT: json.dumps(item)}
    assert kept(deep[0], 0).data == deep[0]


def test_letters_of_what_is_kept_as_text_take_no_more_bytes_than_as_plain_data() -> None:
    text = "漢é" * 1000
    plain, cut = kept({"a": text}, 0), kept({"a": text + "\ud83d"}, 0)
    assert got(cut.data) == {"a": text + "\ud83d"}
    assert cut.size - plain.size < 40


def sized(sizes: list[int]) -> list[Kept]:
    return [Kept(f"{at}", size) for at, size in enumerate(sizes)]


@given(some.none() | some.lists(some.integers(0, 10**6), max_size=PAGE_ITEMS_MAX), SIZES)
def test_pages_hold_all_items_in_order_within_their_bounds(last: list[Any] | None, sizes: list[int]) -> None:
    items = sized(sizes)
    pages = filling(last, items)
    assert [*chain(*pages)] == [*(last or []), *(item.data for item in items)]
    assert all(pages[1:])
    if last is not None:
        assert pages[0][: len(last)] == last
    by_data = {item.data: item.size for item in items}
    bytes_max, items_max = max(PAGE_BYTES_MAX, sum(sizes) // 60), max(PAGE_ITEMS_MAX, len(sizes) // 60)
    for page in pages:
        assert len(page) <= items_max
        assert len(page) == 1 or sum(by_data.get(one, 1) for one in page) <= bytes_max
    assert len(pages) < WRITTEN_PAGES_MAX


@pytest.mark.parametrize("sizes", [[16 * 1024 * 1024 // 255] * 255, [1] * 100_000, [40_000, 250_000] * 56])
def test_an_addition_of_any_size_is_one_commit(sizes: list[int]) -> None:
    assert len(filling(None, sized(sizes))) < 200


def test_more_pages_than_a_commit_takes_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        added(Place("42"), Place("42").nothing(), sized([1500] * 300), "r", 2048)


class Session:
    """States by their names, changed by what is decided."""

    def __init__(self) -> None:
        self.place, self.states, self.number = Place("42"), dict[str, State[Any]](), 0
        self.names = set[str]()
        """Of all that was ever there."""

    def found(self, last: int = 1) -> Found:
        """Return what is found, with that many pages at the end."""
        head = self.states.get(self.place.head)
        if head is None:
            return self.place.nothing()
        known = self.place.read(head)
        numbers = range(max(known.pages - last, 0) + 1, known.pages + 1)
        return Found(head, known, [self.states.get(self.place.page(known, number)) for number in numbers])

    def apply(self, writes: list[Set | Create | Delete]) -> None:
        """Do what was decided."""
        self.number += 1
        for one in writes:
            if isinstance(one, Create):
                assert one.assume_new
                assert one.name not in self.names
            else:
                assert one.expected in (..., self.states.get(one.name))
            self.names.add(one.name)
            if isinstance(one, Delete):
                del self.states[one.name]
            else:
                self.put(one.name, one.value)

    def put(self, name: str, value: Any) -> None:
        """Write a state over what is there, by the next change."""
        before = self.states.get(name)
        self.states[name] = State(
            key=f"s/{name}", value=value, epoch=1, version=self.number,
            change_id=token_hex(8), parent_change_id=before.change_id if before else "",
            position=None, updated_at=datetime.now(UTC), writer="",
        )  # fmt: skip

    def take_in(self, states: dict[str, State[Any]]) -> None:
        """Import states of another deployment, over those that are there, at the versions that they had there."""
        self.number = states[self.place.head].version
        self.names |= states.keys()
        for name, state in states.items():
            self.put(name, state.value)


def test_pages_that_come_and_go_all_the_time_leave_a_head_of_bounded_size() -> None:
    session = Session()
    for number in range(2 * LOGS_MAX):
        for _ in range(2):
            session.apply(
                added(session.place, session.found(), [Kept("x" * 20_000, 20_000)], f"a{number}", VALUE_BYTES_MAX)
            )
        session.apply(popped(session.place, session.found(), f"b{number}"))
    found = session.found(1000)
    assert found.known.pages == 2 * LOGS_MAX
    assert len(found.known.logs) == LOGS_MAX
    assert found.holds_together()
    assert len(msgspec.json.encode(session.states["42"].value)) < 25 * LOGS_MAX


def test_a_head_that_an_import_put_in_the_place_of_a_newer_one_begins_a_log() -> None:
    """Versions begin again in the deployment that takes it in."""
    session, other, exported = Session(), Session(), list[dict[str, State[Any]]]()
    for number in range(4):
        session.apply(added(session.place, session.found(), [Kept("x" * 20_000, 20_000)], f"{number}", VALUE_BYTES_MAX))
        exported.append(dict(session.states))
    assert len(session.found().known.logs) == 1
    for states in (exported[3], *exported):
        other.take_in(states)
        items, logs = other.found().known.items, len(other.found().known.logs)
        other.apply(added(other.place, other.found(), [Kept("y" * 20_000, 20_000)], "y", VALUE_BYTES_MAX))
        assert (other.found().known.items, len(other.found().known.logs)) == (items + 1, logs + 1)
        assert other.found(1000).holds_together()


def test_a_release_that_knows_of_no_logs_refuses_a_head_that_has_some() -> None:
    session = Session()
    for number in range(2):
        session.apply(added(session.place, session.found(), [Kept("x" * 20_000, 20_000)], f"{number}", VALUE_BYTES_MAX))
        told = msgspec.json.encode(session.states["42"].value)
        before = msgspec.defstruct("Head", [("session_id", str), ("items", int), ("pages", int), ("revision", str)])
        if number == 0:
            msgspec.json.decode(told, type=before)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.pages"):
        msgspec.json.decode(told, type=before)


@given(some.lists(some.integers(-3, 90), max_size=30), some.data())
def test_what_was_read_at_several_moments_holds_together_only_where_it_is_one(steps: list[int], data: Any) -> None:
    session, items, before = Session(), list[Any](), list[tuple[Found, list[Any]]]()
    for at, step in enumerate(steps):
        if step > 0:
            more = [Kept(f"{at}.{number}", 700) for number in range(step)]
            session.apply(added(session.place, session.found(), more, f"r{at}", VALUE_BYTES_MAX))
            items = [*items, *(one.data for one in more)]
        elif step == -3:
            session.apply(cleared(session.place, session.found(), set()))
            items = []
        elif items:
            session.apply(popped(session.place, session.found(), f"r{at}"))
            items = items[:-1]
        found = session.found(1000)
        assert found.holds_together()
        assert session.found(1).holds_together()
        assert (found.items(), found.known.items) == (items, len(items))
        before.append((found, items))
    if before:
        (one, held), (other, _) = data.draw(some.sampled_from(before)), data.draw(some.sampled_from(before))
        torn = Found(one.head, one.known, [*other.pages[: len(one.pages)], *one.pages[len(other.pages) :]])
        assert not torn.holds_together() or torn.items() == held
    if not items:
        assert session.found().head is None
        assert popped(session.place, session.found(), "r") == cleared(session.place, session.found(), set()) == []


def test_limits_stand_in_order() -> None:
    assert 0 < CROWDED < ATTEMPTS_MAX
    assert PAGE_BYTES_MAX < VALUE_BYTES_MAX


def test_importing_statecache_loads_nothing_of_the_sdk() -> None:
    code = "import sys, statecache, statecache.adapters; print([name for name in sys.modules if 'agents' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
