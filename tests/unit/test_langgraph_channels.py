"""The states of large channels: what the latest checkpoint names is the newest of its states at every instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache import LimitExceeded, keys, model
from statecache.adapters.langgraph import channels
from statecache.adapters.langgraph.ancestors import delta_channels
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.putting import put
from statecache.adapters.langgraph.reading import get_tuple
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.threads import delete_for_runs
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.plans import run
from statecache.testing import memory
from tests.support.langgraph_stories import METADATA, checkpoint

SERDE = Serde(JsonPlusSerializer())
PLACE = Place("42")
SIZE = 80_000
LARGE = "x" * 20_000
RUN: Any = {**METADATA, "run_id": "second"}


class Looking:
    """A view on whose commits somebody looks: before each, with its number, and after it."""

    def __init__(self, view: Any, before: Callable[[int], None], after: Callable[[], None]) -> None:
        self.view, self.before, self.after, self.commits = view, before, after, 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def commit(self, writes: list[Any], **more: Any) -> Any:
        """Commit, and have somebody look."""
        self.commits += 1
        self.before(self.commits)
        made = self.view.commit(writes, **more)
        self.after()
        return made


def put_one(view: Any, parent: str | None, one: Any, *changed: str, metadata: Any = METADATA) -> None:
    """Put a checkpoint in which these channels have changed."""
    new = {name: one["channel_versions"][name] for name in changed}
    run(view, put(PLACE, parent, one, metadata, new, SERDE, Recent()))


def made(values: dict[str, Any], *versions: int, **more: Any) -> Any:
    """Return a checkpoint whose channels are at these versions."""
    return checkpoint(values, channel_versions=dict(zip(values, versions, strict=True)), **more)


def latest(view: Any) -> Any:
    """Return the latest checkpoint, of which all large values are the newest of their states."""
    head = view.get(PLACE.head)
    forms = view.get(PLACE.checkpoint(head.value["checkpoint_id"])).value["channel_values"]
    for channel, form in forms.items():
        for at, version in enumerate(form.get("versions", ())):
            state = view.get(PLACE.channel(channel, at, beside=form.get("beside", False)))
            assert (state.version, state.value["checkpoint_id"]) == (version, form["of"]), channel
    found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
    assert found is not None
    return found.checkpoint


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A view of a deployment in memory, of whose commits each has room for one large value."""
    monkeypatch.setattr("statecache.adapters.langgraph.channels.COMMIT_BYTES_MAX", 150_000)
    monkeypatch.setattr("statecache.core.commit.committer.COMMIT_BYTES_MAX", 160_000)
    with memory() as cache:
        yield cache.namespace("langgraph")


@pytest.fixture
def first(view: Any) -> Any:
    """A checkpoint of more than a commit holds, behind which each of two others has changed a value."""
    one = made({name: bytes(SIZE) for name in "abc"}, 1, 1, 1)
    put_one(view, None, one, *"abc")
    values, parent = one["channel_values"], one["id"]
    for number, name in enumerate("ab", 2):
        values = values | {name: bytes([number]) * SIZE}
        two = made(values, 2, {2: 1, 3: 3}[number], 1)
        put_one(view, parent, two, name, metadata=RUN)
        parent = two["id"]
    return one


@pytest.mark.parametrize("how", ["nothing", "late", "fork"])
def test_of_a_fork_that_no_commit_has_room_for_what_has_not_changed_is_put_ahead(
    view: Any, first: Any, how: str
) -> None:
    before, seen = latest(view), list[str]()
    other = made({"a": LARGE, "b": LARGE}, 8, 8, **({"id": before["id"][:-1] + " "} if how == "late" else {}))
    fork = made({**first["channel_values"], "n": 1}, 1, 1, 1, 4)

    def come_between(number: int) -> None:
        if number == 3 and how != "nothing":  # the first one is refused
            put_one(view, first["id"], other, *"ab")

    looking: Any = Looking(view, come_between, lambda: seen.append(latest(view)["id"]))
    put_one(looking, first["id"], fork, "n")
    assert latest(view) == fork
    names = [before["id"], *([other["id"]] if how == "fork" else []), fork["id"]]
    assert [*dict.fromkeys(seen)] == names
    assert seen.count(fork["id"]) == 1
    assert len(seen) == {"nothing": 4, "late": 5, "fork": 5}[how]


def test_a_head_that_goes_back_to_more_than_a_commit_holds_has_it_put_again_ahead(view: Any, first: Any) -> None:
    before, seen = latest(view)["id"], list[str]()
    looking: Any = Looking(view, lambda _: None, lambda: seen.append(latest(view)["id"]))
    run(looking, delete_for_runs(["second"], Recent()))
    assert latest(view) == first
    assert seen == [before, before, first["id"]]
    late = made({"a": LARGE, "b": LARGE, "c": LARGE}, 7, 7, 7, id="0")
    put_one(view, None, late, *"abc")
    assert latest(view) == first
    assert run(view, get_tuple(PLACE, "0", SERDE, Recent())).checkpoint == late  # type: ignore[union-attr]


def test_what_has_changed_with_a_fork_has_to_have_room_and_nothing_is_put_ahead_of_what_has_not(
    view: Any, first: Any
) -> None:
    before, states = latest(view), {state.key: state.version for state in view.list(values=False)}
    fork = made({**first["channel_values"], **{name: bytes([9]) * SIZE for name in "def"}}, 1, 1, 1, 4, 4, 4)
    with pytest.raises(LimitExceeded, match="the commit's size"):
        put_one(view, first["id"], fork, *"def")
    assert latest(view) == before
    assert {state.key: state.version for state in view.list(values=False)} == states


def test_what_comes_late_is_put_beside_what_the_latest_names(view: Any) -> None:
    base, one = made({"n": 1}, 1), made({"a": LARGE, "n": 2}, 2, 2)
    put_one(view, None, base, "n")
    put_one(view, base["id"], one, "a", "n")
    for number in range(3, 6):
        late = made({"a": f"{number}{LARGE}", "n": number}, number, number, id=one["id"][:-1] + " ")
        put_one(view, base["id"], late, "a", "n")
        assert latest(view) == one
        found = run(view, get_tuple(PLACE, late["id"], SERDE, Recent()))
        assert (found and found.checkpoint) == late
    names = {"langgraph/42/ch/-/a": 1, "langgraph/42/ch/-/a/beside": 3}
    assert {state.key: state.version for state in view.list("42/ch/")} == names
    on = made({"a": LARGE, "n": 9}, 2, 9)
    put_one(view, one["id"], on, "n")
    assert latest(view) == on


def test_the_same_fork_put_again_has_its_value_put_again_though_the_state_that_it_names_has_lost_it(view: Any) -> None:
    one, two, fork = made({"a": LARGE}, 1), made({"a": f"2{LARGE}"}, 2), made({"a": LARGE, "n": 1}, 1, 3)
    put_one(view, None, one, "a")
    put_one(view, one["id"], two, "a")
    put_one(view, one["id"], fork, "n")
    view.delete(PLACE.channel("a"))
    view.set(PLACE.channel("a"), {"checkpoint_id": "another", "value": "another"})
    view.update(PLACE.checkpoint(fork["id"]), partial(_naming, version=9))
    put_one(view, one["id"], fork, "n")
    assert latest(view) == fork


def _naming(document: Any, version: int) -> Any:
    forms = document["channel_values"]
    return document | {"channel_values": forms | {"a": forms["a"] | {"versions": [version]}}}


def test_a_delta_channel_without_a_value_is_made_of_what_ancestors_hold_if_it_was_ever_written() -> None:
    counted = {"counters_since_delta_snapshot": {"written": [1, 1], "held": [2, 2], "never": [0, 3]}}
    versions = {"written": 1, "held": 2, "other": 1}
    document = {"metadata": counted, "checkpoint": {"channel_versions": versions}, "channel_values": {"held": {}}}
    assert delta_channels(document) == {"written"}
    assert delta_channels(document | {"metadata": {}}) == set()
    assert delta_channels(document | {"checkpoint": {}}) == {"written", "never"}


def test_what_a_commit_and_a_state_hold_is_what_the_library_says() -> None:
    assert (channels.WHOLE_BYTES_MAX, channels.STATE_BYTES_MAX) == (model.COMMIT_BYTES_MAX, model.VALUE_BYTES_MAX)
    assert (channels.STATE_BYTES, channels.KEY_BYTES_MAX) == (model.STATE_OVERHEAD_BYTES, keys.KEY_BYTES_MAX)
