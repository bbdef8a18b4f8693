"""Plans carried out by hand: what a saver does where servers answer otherwise than it thought."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from statecache import VersionConflict, VersionNotFound
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.plans import Call, Found, run, until_found
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX, put
from statecache.adapters.langgraph.reading import get_tuple
from statecache.adapters.langgraph.values import Serde
from statecache.testing import memory
from tests.support.langgraph_stories import METADATA, checkpoint

SERDE = Serde(JsonPlusSerializer())
PLACE = Place("42")
LARGE = "x" * 20_000


class Interfering:
    """A view on which something happens just before a commit, so many times."""

    def __init__(self, view: Any, interfere: Any, times: int = 1) -> None:
        self.view, self.interfere, self.left, self.commits = view, interfere, times, 0

    def __getattr__(self, verb: str) -> Any:
        if verb == "commit":
            self.commits += 1
            if self.left:
                self.left -= 1
                self.interfere(self.view)
        return getattr(self.view, verb)


def test_a_channel_that_came_and_went_meanwhile_is_named_at_its_real_version() -> None:
    def come_and_go(view: Any) -> None:
        view.set(PLACE.channel("a"), {"checkpoint_id": "another", "value": "another"})
        view.delete(PLACE.channel("a"))

    one = checkpoint({"a": LARGE})
    with memory() as cache:
        view = cache.namespace("langgraph")
        interfering: Any = Interfering(view, come_and_go)
        run(interfering, put(PLACE, None, one, METADATA, {"a": 1}, SERDE))
        assert interfering.commits == 2
        found = run(view, get_tuple(PLACE, None, SERDE))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": LARGE}


def test_a_put_gives_up_where_others_never_do() -> None:
    def move(view: Any) -> None:
        view.set(PLACE.head, {"checkpoint_id": "0"})

    with memory() as cache:
        endless: Any = Interfering(cache.namespace("langgraph"), move, times=1000)
        with pytest.raises(VersionConflict):
            run(endless, put(PLACE, None, checkpoint({"a": 1}), METADATA, {"a": 1}, SERDE))
    assert endless.commits == ATTEMPTS_MAX


def test_a_value_that_is_another_checkpoints_is_never_given() -> None:
    one = checkpoint({"a": LARGE})
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, {"a": 1}, SERDE))
        view.update(PLACE.checkpoint(one["id"]), lambda document: _naming(document, version=2))
        view.update(PLACE.channel("a"), lambda document: document | {"checkpoint_id": "another"})
        with pytest.raises(VersionNotFound, match="not put with checkpoint"):
            run(view, get_tuple(PLACE, None, SERDE))


def _naming(document: dict[str, Any], *, version: int) -> dict[str, Any]:
    forms = {"a": document["channel_values"]["a"] | {"versions": [version]}}
    return document | {"channel_values": forms}


def test_what_a_verb_raises_is_raised_in_the_listing_that_called_it() -> None:
    def listing() -> Generator[Any, Any, None]:
        try:
            yield Call("commit", (), {})
        except VersionConflict:
            yield Found("caught")  # type: ignore[arg-type]

    plan = until_found(listing())
    assert next(plan) == Call("commit", (), {})
    with pytest.raises(StopIteration) as end:
        plan.throw(VersionConflict("a/b", None))
    assert end.value.value == "caught"


def test_without_the_extra_one_line_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['langgraph.checkpoint.base'] = None\n"
        "from statecache import ConfigurationError\n"
        "try: import statecache.adapters.langgraph\n"
        "except ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    what = "a checkpointer for LangGraph needs the package langgraph-checkpoint. pip install 'statecache[langgraph]'"
    assert done.stdout == f"The configuration does not fit: {what}\n"


def test_importing_statecache_loads_nothing_of_langgraph() -> None:
    code = "import sys, statecache, statecache.adapters; print([name for name in sys.modules if 'lang' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
