"""The large values of the latest checkpoint are read with it by who does not hold them, whatever the head says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache.adapters.langgraph.documents import write_documents
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.putting import put
from statecache.adapters.langgraph.reading import get_tuple
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.threads import delete_for_runs
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.langgraph.writing import put_writes
from statecache.adapters.plans import run
from statecache.testing import memory
from tests.support.langgraph_stories import METADATA, checkpoint

SERDE = Serde(JsonPlusSerializer())
PLACE = Place("42")
HEAD = PLACE.head


def large(number: int) -> str:
    """Return a value that gets a state of its own."""
    return f"{number} " * 4000


class Asking:
    """A view that notes the names which each exchange has asked for."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self.asked: list[list[str]] = []

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def get(self, name: str, **more: Any) -> Any:
        """Ask for one state."""
        self.asked.append([name])
        return self.view.get(name, **more)

    def get_many(self, names: list[str], **more: Any) -> Any:
        """Ask for several."""
        self.asked.append([*names])
        return self.view.get_many(names, **more)


@pytest.fixture
def view() -> Iterator[Asking]:
    """An empty namespace."""
    with memory() as cache:
        yield Asking(cache.namespace("langgraph"))


def play(view: Any, one: Any, parent: Any, changed: list[str], recent: Recent) -> None:
    """Put a checkpoint that changes some channels."""
    parent_id = parent and parent["id"]
    versions = {name: one["channel_versions"][name] for name in changed}
    run(view, put(PLACE, parent_id, one, METADATA, versions, SERDE, recent))


def seen(view: Any, recent: Recent) -> tuple[Any, list[list[str]]]:
    """Return the latest checkpoint, and what each exchange has asked for."""
    view.asked = []
    found = run(view, get_tuple(PLACE, None, SERDE, recent))
    return found and found.checkpoint, view.asked


def three(view: Any) -> list[Any]:
    """Put three checkpoints: two large values and a small one, one large value changed, the small one changed."""
    first = checkpoint({"a": large(1), "b": large(2), "n": 1})
    second = checkpoint({"a": large(3), "b": large(2), "n": 1}) | {"channel_versions": {"a": 2, "b": 1, "n": 1}}
    third = checkpoint({"a": large(3), "b": large(2), "n": 2}) | {"channel_versions": {"a": 2, "b": 1, "n": 3}}
    recent = Recent()
    play(view, first, None, ["a", "b", "n"], recent)
    play(view, second, first, ["a"], recent)
    play(view, third, second, ["n"], recent)
    return [first, second, third]


def test_who_holds_nothing_of_a_thread_reads_its_latest_checkpoint_in_two_exchanges(view: Any) -> None:
    *_, third = three(view)
    found, asked = seen(view, Recent())
    assert found == third
    assert asked == [[HEAD], [HEAD, PLACE.checkpoint(third["id"]), PLACE.channel("a"), PLACE.channel("b")]]


def test_what_a_process_holds_is_not_asked_for_again(view: Any) -> None:
    *_, third = three(view)
    reader, writer = Recent(), Recent()
    seen(view, reader)
    seen(view, writer)
    fourth = checkpoint({"a": large(3), "b": large(4), "n": 2}) | {"channel_versions": {"a": 2, "b": 4, "n": 3}}
    play(view, fourth, third, ["b"], writer)
    assert seen(view, writer) == (fourth, [[HEAD, PLACE.checkpoint(fourth["id"])]])
    assert seen(view, reader) == (fourth, [[HEAD], [HEAD, PLACE.checkpoint(fourth["id"]), PLACE.channel("b")]])


def test_a_head_that_goes_back_names_what_the_earlier_one_has(view: Any) -> None:
    first, second, _ = three(view)
    late = checkpoint({"a": large(5), "n": 2}) | {"channel_versions": {"a": 9, "n": 3}}
    told: Any = {**METADATA, "run_id": "gone"}
    run(view, put(PLACE, second["id"], late, told, {"a": 9}, SERDE, Recent()))
    assert view.get(HEAD).value["large"].keys() == {"a"}
    run(view, delete_for_runs(["gone"], Recent()))
    assert view.get(HEAD).value["large"].keys() == {"a", "b"}
    found, asked = seen(view, Recent())
    assert found["channel_values"]["b"] == large(2)
    assert found["id"] != first["id"]
    assert len(asked) == 2


def test_writes_that_come_before_their_checkpoint_leave_what_the_head_says(view: Any) -> None:
    *_, third = three(view)
    later = checkpoint({"n": 5}, version=5)
    before = view.get(HEAD).value["large"]
    run(view, put_writes(PLACE, later["id"], {"t": write_documents([("n", 1)], "t", "", SERDE)}, Recent()))
    assert view.get(HEAD).value["newest"] == later["id"]
    assert view.get(HEAD).value["large"] == before
    found, asked = seen(view, Recent())
    assert (found, len(asked)) == (third, 2)


@pytest.mark.parametrize(
    "large_of",
    [
        None,
        [],
        "a",
        {},
        {"a": 1},
        {"a": "2", "c": None, "": 1, "/": 2, "b": True},
        {"a": [2], "b": {}},
        {"x" * 5000: 1},
    ],
)
def test_a_head_that_was_edited_by_hand_may_say_anything_of_large_values(view: Any, large_of: Any) -> None:
    *_, third = three(view)
    head = view.get(HEAD).value
    view.set(HEAD, head | {"large": large_of})
    assert seen(view, Recent())[0] == third


def test_a_head_of_an_earlier_release_says_nothing_of_them(view: Any) -> None:
    *_, third = three(view)
    view.set(HEAD, {name: part for name, part in view.get(HEAD).value.items() if name != "large"})
    found, asked = seen(view, Recent())
    assert (found, len(asked)) == (third, 3)
