"""Plans carried out by hand: what a saver does where servers answer otherwise than it thought."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from msgspec import structs

from statecache import VersionConflict, VersionNotFound
from statecache.adapters.langgraph.documents import head_document
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX, put
from statecache.adapters.langgraph.reading import get_tuple
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.plans import Call, Found, run, until_found
from statecache.testing import memory
from tests.support.langgraph_stories import METADATA, Interfering, checkpoint

SERDE = Serde(JsonPlusSerializer())
PLACE = Place("42")
LARGE = "x" * 20_000


def test_a_channel_that_came_and_went_meanwhile_is_named_at_its_real_version() -> None:
    def come_and_go(view: Any) -> None:
        view.set(PLACE.channel("a"), {"checkpoint_id": "another", "value": "another"})
        view.delete(PLACE.channel("a"))

    one = checkpoint({"a": LARGE})
    with memory() as cache:
        view = cache.namespace("langgraph")
        interfering: Any = Interfering(view, come_and_go)
        run(interfering, put(PLACE, None, one, METADATA, {"a": 1}, SERDE, Recent()))
        assert interfering.commits == 2
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": LARGE}


def test_a_put_gives_up_where_others_never_do() -> None:
    def move(view: Any) -> None:
        view.set(PLACE.head, head_document(PLACE, "0"))

    with memory() as cache:
        endless: Any = Interfering(cache.namespace("langgraph"), move, times=1000)
        with pytest.raises(VersionConflict):
            run(endless, put(PLACE, None, checkpoint({"a": 1}), METADATA, {"a": 1}, SERDE, Recent()))
    assert endless.commits == ATTEMPTS_MAX


def test_a_value_that_is_another_checkpoints_is_never_given() -> None:
    one = checkpoint({"a": LARGE})
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, {"a": 1}, SERDE, Recent()))
        view.update(PLACE.checkpoint(one["id"]), lambda document: _naming(document, version=2))
        view.update(PLACE.channel("a"), lambda document: document | {"checkpoint_id": "another"})
        with pytest.raises(VersionNotFound, match="not put with checkpoint"):
            run(view, get_tuple(PLACE, None, SERDE, Recent()))


def _naming(document: dict[str, Any], *, version: int) -> dict[str, Any]:
    forms = {"a": document["channel_values"]["a"] | {"versions": [version]}}
    return document | {"channel_values": forms}


def test_a_large_value_that_is_kept_here_of_a_lost_lineage_is_read_anew() -> None:
    one = checkpoint({"a": LARGE})
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, {"a": 1}, SERDE, Recent()))
        lost: Any = Keeping(view, PLACE.channel("a"))
        found = run(lost, get_tuple(PLACE, None, SERDE, Recent()))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": LARGE}
    assert lost.given == 1


class Stale:
    """A view that keeps all states here as they were when it was made, as long as nobody asks the primary."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self.kept = {state.key.partition("/")[2]: state for state in view.list()}

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def get(self, name: str, *, read: str, **more: Any) -> Any:
        """Return a state, as it was or as it is."""
        return self.kept[name] if read == "local" and name in self.kept else self.view.get(name, read=read, **more)

    def get_many(self, names: list[str], read: str) -> dict[str, Any]:
        """Return states, as they were or as they are."""
        return {name: self.get(name, read=read) for name in names}


def test_who_kept_what_others_have_changed_reads_and_puts_all_the_same() -> None:
    first, second, third = (checkpoint({"a": f"{number}{LARGE}"}, version=number) for number in range(3))
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, first, METADATA, {"a": 0}, SERDE, Recent()))
        stale: Any = Stale(view)
        run(view, put(PLACE, first["id"], third, METADATA, {"a": 2}, SERDE, Recent()))
        found = run(stale, get_tuple(PLACE, None, SERDE, Recent()))
        assert found is not None
        assert found.checkpoint == third
        run(stale, put(PLACE, first["id"], second, METADATA, {"a": 1}, SERDE, Recent()))
        for view_ in (view, stale):
            latest, earlier = (
                run(view_, get_tuple(PLACE, None, SERDE, Recent())),
                run(view_, get_tuple(PLACE, second["id"], SERDE, Recent())),
            )
            assert (latest and latest.checkpoint, earlier and earlier.checkpoint) == (third, second)


def test_what_a_caller_changes_while_it_is_put_changes_nothing() -> None:
    one = checkpoint({"a": [1]}, versions_seen={"node": {"a": 1}}, updated_channels=["a"])
    before = copy.deepcopy(one)

    def change(_: Any) -> None:
        one["versions_seen"]["node"]["a"] = 2
        one["channel_versions"]["a"] = 2
        one["channel_values"]["a"].append(2)
        one["updated_channels"] = None

    with memory() as cache:
        view = cache.namespace("langgraph")
        changing: Any = Interfering(view, change)
        run(changing, put(PLACE, None, one, METADATA, {"a": 1}, SERDE, Recent()))
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
    assert found is not None
    assert found.checkpoint == before


class Keeping:
    """A view that keeps one state as a Redis had it that was lost: at the same version, put with another checkpoint."""

    def __init__(self, view: Any, name: str) -> None:
        self.view, self.name, self.given = view, name, 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def get_many(self, names: list[str], read: str) -> dict[str, Any]:
        """Return what is kept here, or what the server has."""
        found: dict[str, Any] = self.view.get_many(names, read=read)
        if read == "local" and self.name in found:
            self.given += 1
            state = found[self.name]
            found[self.name] = structs.replace(state, value=state.value | {"checkpoint_id": "lost", "value": "lost"})
        return found


def test_what_a_verb_raises_is_raised_in_the_listing_that_called_it() -> None:
    def listing() -> Generator[Any, Any, None]:
        try:
            yield Call("commit", (), {})
        except VersionConflict:
            yield Found("caught")

    plan = until_found(listing())
    assert next(plan) == Call("commit", (), {})
    with pytest.raises(StopIteration) as end:
        plan.throw(VersionConflict("a/b", None))
    assert end.value.value == "caught"


def test_importing_statecache_loads_nothing_of_langgraph() -> None:
    code = "import sys, statecache, statecache.adapters; print([name for name in sys.modules if 'lang' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
