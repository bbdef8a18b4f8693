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

from statecache import LimitExceeded, RedisUnavailable, VersionConflict, VersionNotFound
from statecache.adapters.langgraph.copying import copy_thread
from statecache.adapters.langgraph.documents import head_document, write_documents
from statecache.adapters.langgraph.listing import Query, listed
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.putting import ATTEMPTS_MAX, put
from statecache.adapters.langgraph.reading import get_tuple
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.langgraph.writing import put_writes
from statecache.adapters.plans import Call, Found, run, until_found
from statecache.testing import memory
from tests.support.langgraph_stories import METADATA, Interfering, checkpoint

SERDE = Serde(JsonPlusSerializer())
PLACE = Place("42")
LARGE = "x" * 20_000
MIB = 1024 * 1024


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


class Cut:
    """A view whose commits fail, all but the first so many."""

    def __init__(self, view: Any, left: int) -> None:
        self.view, self.left = view, left

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.view, verb)

    def commit(self, writes: list[Any]) -> Any:
        """Commit, or raise."""
        self.left -= 1
        if self.left < 0:
            raise RedisUnavailable("commit", detail="cut off")
        return self.view.commit(writes)


@pytest.mark.parametrize("left", range(4))
def test_the_first_checkpoint_of_a_thread_may_be_larger_than_a_commit_and_comes_whole_or_not_at_all(left: int) -> None:
    one = checkpoint({name: bytes(7 * MIB) for name in "abc"} | {"d": 1})
    with memory() as cache:
        view = cache.namespace("langgraph")
        cut: Any = Cut(view, left)
        if left < 3:
            with pytest.raises(RedisUnavailable):
                run(cut, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
            assert run(view, get_tuple(PLACE, None, SERDE, Recent())) is None
            cut.left = 3
        run(cut, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
        assert (found and found.checkpoint) == one
        assert cut.left == 0
        two = checkpoint({name: bytes([1]) * 7 * MIB for name in "abc"}, version=2)
        with pytest.raises(LimitExceeded, match="the commit's size"):
            run(view, put(PLACE, one["id"], two, METADATA, two["channel_versions"], SERDE, Recent()))
        assert run(view, get_tuple(PLACE, None, SERDE, Recent())) == found


def test_of_a_first_checkpoint_that_another_comes_before_nothing_is_written_ahead() -> None:
    ours, theirs = checkpoint({name: bytes(7 * MIB) for name in "abc"}), checkpoint({"d": LARGE})

    def come_before(view: Any) -> None:
        run(view, put(PLACE, None, theirs, METADATA, theirs["channel_versions"], SERDE, Recent()))

    with memory() as cache:
        view = cache.namespace("langgraph")
        interfering: Any = Interfering(view, come_before)
        with pytest.raises(LimitExceeded, match="the commit's size"):
            run(interfering, put(PLACE, None, ours, METADATA, ours["channel_versions"], SERDE, Recent()))
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
        assert (found and found.checkpoint) == theirs
        assert [one.key for one in view.list("42/ch/")] == ["langgraph/42/ch/-/d"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_same_large_first_checkpoint_may_be_put_again(*, goes_on: bool) -> None:
    one = checkpoint({name: bytes(7 * MIB) for name in "abc"} | {"d": 1})
    two = checkpoint({"a": LARGE}, version=2)
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        if goes_on:
            run(view, put(PLACE, one["id"], two, METADATA, two["channel_versions"], SERDE, Recent()))
        before = {state.key: state.version for state in view.list("42/ch/")}
        run(view, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        assert {state.key: state.version for state in view.list("42/ch/")} == before
        found, latest = (run(view, get_tuple(PLACE, which, SERDE, Recent())) for which in (one["id"], None))
        assert (found and found.checkpoint) == one
        assert (latest and latest.checkpoint["id"]) == (two if goes_on else one)["id"]


@pytest.mark.parametrize("meanwhile", [False, True])
def test_writes_may_come_before_a_large_first_checkpoint(*, meanwhile: bool) -> None:
    one = checkpoint({name: bytes(7 * MIB) for name in "abc"})

    def write(view: Any) -> None:
        writes = write_documents([("a", 1)], "task", "", SERDE)
        run(view, put_writes(PLACE, one["id"], {"task": writes}, Recent()))

    with memory() as cache:
        view = cache.namespace("langgraph")
        putting: Any = Interfering(view, write) if meanwhile else view
        if not meanwhile:
            write(view)
        run(putting, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
        assert (found and found.checkpoint) == one
        assert (found and found.pending_writes) == [("task", "a", 1)]


def test_a_copy_of_a_large_thread_that_was_cut_off_is_finished_by_another() -> None:
    one, two = checkpoint({name: bytes(7 * MIB) for name in "abc"}), checkpoint({"d": 1}, version=2)
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        run(view, put(PLACE, one["id"], two, METADATA, {"d": 1}, SERDE, Recent()))
        cut: Any = Cut(view, 3)
        with pytest.raises(RedisUnavailable):
            run(cut, copy_thread(PLACE.thread, "43", Recent()))
        for _ in range(2):
            run(view, copy_thread(PLACE.thread, "43", Recent()))
            assert [*checkpoints_of(view, Query(Place("43")))] == [two, one]


@pytest.mark.parametrize(("before", "now"), [(0, False), (True, 1), (1, 1.0)])
def test_a_copy_has_a_value_that_python_finds_equal_to_the_parents(before: Any, now: Any) -> None:
    """At the same version, as whoever puts with versions of their own may have it."""
    one, two = checkpoint({"a": before}), checkpoint({"a": now})
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, {"a": 1}, SERDE, Recent()))
        run(view, put(PLACE, one["id"], two, METADATA, {"a": 1}, SERDE, Recent()))
        run(view, copy_thread(PLACE.thread, "43", Recent()))
        found = [run(view, get_tuple(place, None, SERDE, Recent())) for place in (PLACE, Place("43"))]
    assert [repr(each.checkpoint["channel_values"]["a"]) for each in found if each] == [repr(now)] * 2


@pytest.mark.parametrize(("before", "now"), [(0, False), (True, 1), (1, 1.0)])
@pytest.mark.parametrize("tasks", [1, 12])
def test_an_answer_that_python_finds_equal_to_the_one_before_takes_its_place(before: Any, now: Any, tasks: int) -> None:
    """In the checkpoint's own state, and in those of tasks."""
    one, recent = checkpoint(), Recent()
    with memory() as cache:
        view = cache.namespace("langgraph")
        run(view, put(PLACE, None, one, METADATA, {}, SERDE, recent))
        for value in (before, now):
            names = [f"{number:02}" for number in range(tasks)]
            written = {name: write_documents([("__resume__", value)], name, "", SERDE) for name in names}
            run(view, put_writes(PLACE, one["id"], written, recent))
        found = run(view, get_tuple(PLACE, None, SERDE, Recent()))
        change_ids = [state.change_id for state in view.list(values=False)]
        run(view, put_writes(PLACE, one["id"], written, Recent()))
        assert [state.change_id for state in view.list(values=False)] == change_ids
    assert found is not None
    assert [repr(value) for _, _, value in found.pending_writes or ()] == [repr(now)] * tasks


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
        found = run(lost, get_tuple(PLACE, one["id"], SERDE, Recent()))
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


class Noting:
    """A view that notes which verbs are called."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self.verbs = list[str]()

    def __getattr__(self, verb: str) -> Any:
        self.verbs.append(verb)
        return getattr(self.view, verb)


def checkpoints_of(view: Any, query: Query) -> Generator[Any, None, None]:
    """Yield the checkpoints that a process lists which has read none of them."""
    listing = listed(query, SERDE, Recent())
    while (found := run(view, until_found(listing))) is not None:
        yield found.checkpoint


@pytest.mark.parametrize(("limit", "history"), [(None, 2), (10, 1), (1, 0)])
def test_large_values_of_checkpoints_that_are_listed_are_read_at_once(limit: int | None, history: int) -> None:
    chain = [checkpoint({"a": f"{number}{LARGE}"}, version=number) for number in range(13)]
    with memory() as cache:
        view: Any = Noting(cache.namespace("langgraph"))
        for before, one in zip([None, *chain], chain, strict=False):
            run(view, put(PLACE, before and before["id"], one, METADATA, one["channel_versions"], SERDE, Recent()))
        view.verbs.clear()
        assert [*checkpoints_of(view, Query(PLACE, limit=limit))] == chain[::-1][:limit]
    assert view.verbs.count("history") == history
    assert "get_at" not in view.verbs


def test_large_values_that_are_far_apart_are_read_one_by_one() -> None:
    chain = [checkpoint({"a": f"{number}{LARGE}"}, version=number) for number in range(13)]
    with memory() as cache:
        view: Any = Noting(cache.namespace("langgraph"))
        for at, one in enumerate(chain):
            told: Any = METADATA | {"step": at % 6}
            run(view, put(PLACE, None, one, told, one["channel_versions"], SERDE, Recent()))
        view.verbs.clear()
        assert [*checkpoints_of(view, Query(PLACE, filter={"step": 0}))] == [chain[12], chain[6], chain[0]]
    assert view.verbs.count("get_at") == 2
    assert "history" not in view.verbs


def test_a_checkpoint_whose_value_is_gone_is_left_out_of_a_listing_alone() -> None:
    chain = [checkpoint({"a": f"{number}{LARGE}"}, version=number) for number in range(6)]
    with memory() as cache:
        view = cache.namespace("langgraph")
        for one in chain:
            run(view, put(PLACE, None, one, METADATA, one["channel_versions"], SERDE, Recent()))
        view.update(PLACE.checkpoint(chain[2]["id"]), lambda document: _naming(document, version=1))
        left = [*chain[:2:-1], *chain[1::-1]]
        assert [*checkpoints_of(view, Query(PLACE))] == left
        for limit in range(6):
            assert [*checkpoints_of(view, Query(PLACE, limit=limit))] == left[:limit]
        with pytest.raises(VersionNotFound, match="not put with checkpoint"):
            run(view, get_tuple(PLACE, chain[2]["id"], SERDE, Recent()))


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
