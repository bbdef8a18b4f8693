"""Plans of a store carried out where others write between its reading and its commit."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import GetOp, Item, PutOp

from statecache import ConfigurationError, StateCacheError, VersionConflict
from statecache.adapters.langgraph.store.items import Get, Put, get_items, put_items
from statecache.adapters.plans import Plan, arun, call, run, together
from statecache.testing import memory
from tests.support.langgraph_stories import Interfering

NAME = "users.ada/k"
DOCUMENT: Any = {"namespace": ["users", "ada"], "key": "k", "value": {"by": "another"}}


def put_op(value: Any) -> Put:
    """Return a put of one item."""
    return Put(PutOp(("users", "ada"), "k", value), None)


def got(view: Any) -> Any:
    """Return the item."""
    return run(view, get_items([Get(GetOp(("users", "ada"), "k"))], "primary"))[0]


@pytest.mark.parametrize("value", [{"by": "me"}, None], ids=["put", "deleted"])
def test_who_comes_last_wins_though_others_write_meanwhile(value: Any) -> None:
    with memory() as cache:
        view = cache.namespace("langgraph-store")
        interfering: Any = Interfering(view, lambda view: view.set(NAME, DOCUMENT), times=3)
        assert run(interfering, put_items([put_op(value)])) == [None]
        assert interfering.commits == 4
        found = got(view)
        assert (found and found.value) == value


def test_a_put_wins_at_last_where_others_are_always_in_between() -> None:
    with memory() as cache:
        view = cache.namespace("langgraph-store")
        endless: Any = Interfering(view, lambda view: view.set(NAME, DOCUMENT), times=1000)
        assert run(endless, put_items([put_op({"by": "me"})])) == [None]
        assert got(view).value == {"by": "me"}


def test_an_item_that_is_deleted_meanwhile_is_put_as_a_new_one() -> None:
    with memory() as cache:
        view = cache.namespace("langgraph-store")
        view.set(NAME, DOCUMENT | {"created_at": "2020-01-01T00:00:00+00:00"})
        interfering: Any = Interfering(view, lambda view: view.delete(NAME))
        assert run(interfering, put_items([put_op({"by": "me"})])) == [None]
        assert got(view).created_at.year > 2020


@pytest.mark.parametrize("change", ["put", "deleted"])
def test_an_item_that_is_changed_while_it_is_renewed_stays_changed(change: str) -> None:
    gone: Any = "another"

    def write(view: Any) -> None:
        if change == "put":
            view.set(NAME, DOCUMENT | {"value": {"by": gone}})
        else:
            view.delete(NAME)

    with memory() as cache:
        view = cache.namespace("langgraph-store")
        view.set_many({name: DOCUMENT | {"key": name[-1], "ttl": 60.0} for name in (NAME, "users.ada/m")})
        interfering: Any = Interfering(view, write)
        asked = [Get(GetOp(("users", "ada"), key)) for key in "km"]
        found: list[Any] = run(interfering, get_items(asked, "primary"))
        assert [one.key for one in found] == ["k", "m"]
        assert interfering.commits == 2
        renewed = view.get("users.ada/m")
        assert renewed is not None
        assert renewed.expires_at is not None
        left = view.get(NAME)
        assert (left is None) is (change == "deleted")
        assert left is None or left.expires_at is None


class Refusing:
    """A view that takes no commits of one group."""

    def __init__(self, view: Any, group: str) -> None:
        self.view, self.group = view, group

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def commit(self, writes: list[Any], **more: Any) -> Any:
        """Commit, or raise."""
        if writes[0].name.startswith(self.group):
            raise ConfigurationError("this user may not write there")
        return self.view.commit(writes, **more)


def test_what_hinders_one_namespace_from_lasting_anew_hinders_no_other() -> None:
    with memory() as cache:
        view = cache.namespace("langgraph-store")
        for one in ("ada", "eve"):
            view.set(f"users.{one}/k", DOCUMENT | {"namespace": ["users", one], "ttl": 60.0})
        refusing: Any = Refusing(view, "users.ada/")
        asked = [
            Get(GetOp(("users", one), "k", refresh_ttl=fresh)) for one in ("ada", "eve") for fresh in (True, False)
        ]
        found: list[Any] = run(refusing, get_items(asked, "primary"))
        assert [type(one) for one in found] == [ConfigurationError, Item, Item, Item]
        assert [one.namespace[1] for one in found[1:]] == ["ada", "eve", "eve"]
        assert [one.expires_at is None for one in view.list()] == [True, False]


def conflicting(name: str) -> Plan[None]:
    """Create a state, or raise that it is there."""
    yield from call("set", name, 1, expected=None)


async def test_of_plans_that_are_carried_out_together_each_has_its_own_end() -> None:
    def told(answers: list[StateCacheError | None]) -> list[str | None]:
        return [one if one is None else type(one).__name__ for one in answers]

    names = ["a/1", "a/2", "a/1", *(f"b/{number}" for number in range(9))]
    async with memory() as cache:
        answers = await arun(cache.namespace("x"), together([conflicting(name) for name in names]))
        both = {told(answers)[at] for at in (0, 2)}
        assert both == {None, VersionConflict.__name__}
        assert [told(answers)[at] for at in range(len(names)) if at not in (0, 2)] == [None] * (len(names) - 2)
        assert await arun(cache.namespace("x"), together([])) == []


def test_they_are_carried_out_one_after_the_other_where_nothing_is_awaited() -> None:
    with memory() as cache:
        answers = run(cache.namespace("x"), together([conflicting(name) for name in ("a/1", "a/1", "a/2")]))
        assert [one is None for one in answers] == [True, False, True]
