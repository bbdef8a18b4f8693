"""`statecache import` from what frameworks keep by themselves: all of it, again, in part, and gone on with."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from statecache import Settings
from statecache.adapters.langgraph import StateCacheSaver, importing
from tests.support.command_line import CommandLine
from tests.support.langgraph_imports import all_told, by_name, play, put_in, redis_of_documents, redis_saver
from tests.support.langgraph_stories import builder, config, outer
from tests.support.vendor_schemas import vendor_schema


@pytest.fixture
def documents() -> Iterator[str]:
    """The URL of a Redis that holds documents."""
    with redis_of_documents() as url:
        yield url


@pytest.fixture
def vendors(settings: Settings) -> Iterator[str]:
    """The URL of a schema of the vendor's own, in the test's Postgres."""
    with vendor_schema(settings) as url:
        yield url


def test_threads_are_taken_in_whole_and_gone_on_with(cli: CommandLine, settings: Settings, vendors: str) -> None:
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        play(theirs, "asked/1")
        for answers in ((), ("yes",)):
            play(theirs, "done", *answers)
        outer().compile(checkpointer=theirs).invoke({"messages": ["hello"], "count": 0}, config("nested"))
        threads = ("asked/1", "done", "nested")
        tried = cli("import", "langgraph-postgres", vendors, "--dry-run")
        assert (tried.status, all_told(ours, "done")) == (0, [])
        taken = cli("import", "langgraph-postgres", vendors)
        count = sum(len(all_told(theirs, thread)) for thread in threads)
        assert taken.out == f"{count} checkpoints of 3 threads written, 0 there already\n"
        assert tried.out == taken.out.replace("threads written", "threads would be written")
        assert len({told[0]["checkpoint_ns"] for told in all_told(theirs, "nested")}) == 2
        for thread in threads:
            assert all_told(ours, thread) == all_told(theirs, thread)
        assert cli("import", "langgraph-postgres", vendors).out == (
            f"0 checkpoints of 3 threads written, {count} there already\n"
        )
        ended = [play(saver, "asked/1", "yes")["messages"] for saver in (theirs, ours)]
        assert ended[0] == ended[1]
        assert any("answered yes" in message for message in ended[0])


def test_an_import_that_was_cut_off_goes_on_and_never_turns_a_thread_back(
    cli: CommandLine, settings: Settings, vendors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        for answers in ((), ("yes",)):
            play(theirs, "t", *answers)
        monkeypatch.setattr(importing, "_NEXT", importing._NEXT.replace("LIMIT 1000", "LIMIT 2"))
        put, left = StateCacheSaver.put, [None] * 2

        def cut(self: Any, *args: Any) -> Any:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            return put(self, *args)

        monkeypatch.setattr(StateCacheSaver, "put", cut)
        assert cli("import", "langgraph-postgres", vendors).status == 130
        monkeypatch.setattr(StateCacheSaver, "put", put)
        assert len(all_told(ours, "t")) == 2
        count = len(all_told(theirs, "t"))
        assert cli("import", "langgraph-postgres", vendors, "--json").json == {
            "threads": 1, "written": count - 2, "same": 2, "kept": [], "failed": {},
        }  # fmt: skip
        assert all_told(ours, "t") == all_told(theirs, "t")
        graph = builder().compile(checkpointer=ours)
        further = graph.update_state(config("t"), {"count": 77})
        theirs.delete_thread("t")
        play(theirs, "other")
        assert cli("import", "langgraph-postgres", vendors).status == 0
        latest = ours.get_tuple(config("t"))
        assert latest is not None
        assert latest.config["configurable"]["checkpoint_id"] == further["configurable"]["checkpoint_id"]


def test_writes_that_came_after_an_import_are_taken_in_by_the_next(
    cli: CommandLine, settings: Settings, vendors: str
) -> None:
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings, namespace="mine") as ours:
        theirs.setup()
        play(theirs, "t")
        at = theirs.get_tuple(config("t"))
        assert at is not None
        arguments = ("import", "langgraph-postgres", vendors, "--namespace", "mine", "--json")
        assert cli(*arguments).json["same"] == 0
        theirs.put_writes(at.config, [("messages", ["later"])], "a-task")
        assert cli(*arguments).json["written"] == 1
        assert all_told(ours, "t") == all_told(theirs, "t")


class Answers(TypedDict):
    answers: list[str]


def _asking() -> StateGraph[Any]:
    """Return a graph whose node asks three questions, one after the other."""
    graph = StateGraph(Answers)
    graph.add_node("ask", lambda _: {"answers": [interrupt(what) for what in ("name?", "amount?", "pay it, really?")]})
    graph.add_edge(START, "ask")
    return graph


@pytest.mark.parametrize("gone_on_with", [False, True])
def test_a_question_that_was_asked_since_an_import_is_the_one_that_is_answered(
    cli: CommandLine, settings: Settings, vendors: str, gone_on_with: bool
) -> None:
    """The answers replace one another, so there are as many pending writes; what was answered here stays."""
    arguments = ("import", "langgraph-postgres", vendors, "--json")
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        old, new = (_asking().compile(checkpointer=saver) for saver in (theirs, ours))
        old.invoke({}, config("t"))
        assert cli(*arguments).status == 0
        for name in ("Ada", "Bo"):
            old.invoke(Command(resume=name), config("t"))
            if gone_on_with and name == "Ada":
                new.invoke(Command(resume="here"), config("t"))
            assert cli(*arguments).status == (1 if gone_on_with else 0)
        assert cli(*arguments).json["written"] == 0
        asked = [one.value for one in new.get_state(config("t")).interrupts]
        assert asked == (["amount?"] if gone_on_with else ["pay it, really?"])
        answers = [new.invoke(Command(resume=one), config("t")) for one in ("12", "yes")[not gone_on_with :]][-1]
        assert answers["answers"] == (["here", "12", "yes"] if gone_on_with else ["Ada", "Bo", "yes"])


def test_threads_that_were_deleted_or_thinned_out_here_stay_so_and_are_named(
    cli: CommandLine, settings: Settings, vendors: str
) -> None:
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        for thread in ("deleted", "pruned", "same"):
            play(theirs, thread)
        assert cli("import", "langgraph-postgres", vendors).status == 0
        ours.delete_thread("deleted")
        ours.prune(["pruned"])
        for thread in ("deleted", "pruned"):
            play(theirs, thread, "yes")
        new = len(all_told(theirs, "pruned")) - len(all_told(theirs, "same"))
        for words, written in ((["--dry-run"], new), ([], new), ([], 0)):
            again = cli("import", "langgraph-postgres", vendors, "--json", *words)
            assert (again.status, again.json["kept"]) == (1, ["deleted", "pruned"]), again
            assert again.json["written"] in (written, written + 1), "writes may have come to the latest one"
        assert all_told(ours, "deleted") == []
        assert len(all_told(ours, "pruned")) == new + 1
        assert all_told(ours, "same") == all_told(theirs, "same")


def test_a_thread_that_cannot_be_taken_in_is_named_and_those_after_it_are_taken_in(settings: Settings) -> None:
    theirs, threads = InMemorySaver(), ("a", "m\0", "z")
    for thread in threads:
        play(theirs, thread)
    configs = [one.config for thread in threads for one in reversed([*theirs.list(config(thread))])]
    with StateCacheSaver(settings) as ours:
        done = importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert done.failed == {"m\0": "thread_id 'm\\x00' holds a NUL"}
        assert (done.threads, done.written, done.kept) == (3, len(configs) * 2 // 3, [])
        assert [all_told(ours, one) for one in ("a", "z")] == [all_told(theirs, one) for one in ("a", "z")]


def test_a_resume_that_came_to_a_tasks_other_writes_doubles_none_of_them(settings: Settings) -> None:
    """The vendor gives it first, and what it is put behind keeps its place all the same."""
    theirs, task = InMemorySaver(), "task"
    play(theirs, "t")
    latest = theirs.get_tuple(config("t"))
    assert latest is not None
    theirs.writes.clear()
    theirs.put_writes(latest.config, [("count", 1), ("count", 2)], task)
    with StateCacheSaver(settings) as ours:
        for _ in range(2):
            importing.import_checkpoints([latest.config], theirs, ours, progress=lambda _: None)
            known = theirs.writes.popitem()[1]
            theirs.put_writes(latest.config, [("__resume__", "yes"), ("__interrupt__", "why")], task)
            theirs.writes[next(iter(theirs.writes))] |= known
        found = ours.get_tuple(latest.config)
        assert found is not None
        written = [(channel, value) for _, channel, value in found.pending_writes or ()]
        assert sorted(written, key=str) == [("__interrupt__", "why"), ("__resume__", "yes"), ("count", 1), ("count", 2)]


def test_threads_of_the_vendors_redis_are_taken_in_whole_and_gone_on_with(
    cli: CommandLine, settings: Settings, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = InMemorySaver()
    with redis_saver(documents, monkeypatch) as theirs, StateCacheSaver(settings) as ours:
        play(played, "asked/1")
        play(played, "done: 2")
        play(played, "done: 2", "yes")
        outer().compile(checkpointer=played).invoke({"messages": ["hello"], "count": 0}, config("nested"))
        threads = ("asked/1", "done: 2", "nested")
        for thread in threads:
            put_in(played, theirs, thread)
        theirs._redis.set("checkpoint:of another program", "which is no document")
        before = {*theirs._redis.scan_iter()}
        tried = cli("import", "langgraph-redis", documents, "--dry-run")
        assert (tried.status, all_told(ours, "asked/1")) == (0, []), tried
        taken = cli("import", "langgraph-redis", documents)
        count = sum(len(all_told(played, thread)) for thread in threads)
        assert taken.out == f"{count} checkpoints of 3 threads written, 0 there already\n"
        assert tried.out == taken.out.replace("threads written", "threads would be written")
        assert {*theirs._redis.scan_iter()} == before
        for thread in threads:
            assert by_name(all_told(ours, thread)) == by_name(all_told(played, thread))
        assert any(told[4] for told in all_told(ours, "asked/1"))
        again = cli("import", "langgraph-redis", documents)
        assert again.out == f"0 checkpoints of 3 threads written, {count} there already\n"
        ended = [play(saver, "asked/1", "yes")["messages"] for saver in (played, ours)]
        assert ended[0] == ended[1]


def test_what_the_vendors_keys_begin_with_can_be_named(
    cli: CommandLine, settings: Settings, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix is taken as it is, whatever it would mean in a pattern."""
    played, named = InMemorySaver(), {"checkpoint_prefix": "a*[b]", "checkpoint_write_prefix": "w?"}
    options = ("--checkpoint-prefix", "a*[b]", "--checkpoint-write-prefix", "w?")
    with redis_saver(documents, monkeypatch, **named) as theirs, StateCacheSaver(settings) as ours:
        play(played, "asked/1")
        put_in(played, theirs, "asked/1")
        document = theirs._redis.json().get(next(theirs._redis.scan_iter(match="a[*]*")))
        theirs._redis.json().set("a-b:another", "$", document | {"thread_id": "another"})
        none = cli("import", "langgraph-redis", documents)
        assert none.out == "0 checkpoints of 0 threads written, 0 there already\n"
        taken = cli("import", "langgraph-redis", documents, *options)
        assert taken.out == f"{len(all_told(played, 'asked/1'))} checkpoints of 1 thread written, 0 there already\n", (
            taken
        )
        assert all_told(ours, "asked/1") == all_told(played, "asked/1")
        assert any(told[4] for told in all_told(ours, "asked/1"))
    refused = cli("import", "langgraph-postgres", "postgresql://x", *options)
    assert (refused.status, "go with langgraph-redis" in refused.err) == (2, True), refused


def test_a_redis_that_cannot_be_taken_in_is_told(
    cli: CommandLine, settings: Settings, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = cli("import", "langgraph-redis", settings.redis_url)
    assert (nothing.status, "knows no JSON.GET" in nothing.err, nothing.out) == (3, True, ""), nothing
    with redis.Redis.from_url(settings.redis_url) as plain:
        plain.set("checkpoint:t:__empty__:1", "no document")
        try:
            lacking = cli("import", "langgraph-redis", settings.redis_url)
        finally:
            plain.delete("checkpoint:t:__empty__:1")
    assert (lacking.status, "knows no JSON.GET" in lacking.err) == (3, True), lacking
    for url, status in (("redis://u:secret@127.0.0.1:1/0", 4), ("nonsense", 2)):
        away = cli("import", "langgraph-redis", url)
        assert (away.status, "secret" in away.err) == (status, False), away
    with redis.Redis.from_url(documents) as server:
        named = {"thread_id": "t", "checkpoint_ns": "__empty__", "checkpoint_id": "1", "metadata": "{}"}
        old = named | {"checkpoint": {"v": 1, "id": "1", "channel_versions": {"n": 1}}}
        server.json().set("checkpoint:t:__empty__:1", "$", old)
    early = cli("import", "langgraph-redis", documents)
    assert (early.status, "early release" in early.err) == (3, True), early
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.redis", None)
    missing = cli("import", "langgraph-redis", documents)
    assert (missing.status, "pip install langgraph-checkpoint-redis" in missing.err) == (3, True), missing


def test_a_source_that_cannot_be_read_is_told(cli: CommandLine, vendors: str, tmp_path: Path) -> None:
    empty = cli("import", "langgraph-postgres", vendors)
    assert (empty.status, "holds no checkpoints of LangGraph" in empty.err) == (3, True), empty
    for url in ("nonsense", "postgresql://u:secret@127.0.0.1:1/d", "redis://x"):
        away = cli("import", "langgraph-postgres", url)
        assert away.status in (2, 4), away
        assert "secret" not in away.err
        assert away.err.startswith("statecache: ")
    gone = cli("import", "openai-sqlite", str(tmp_path / "none.db"))
    assert (gone.status, "does not exist" in gone.err) == (2, True), gone
    directory = cli("import", "openai-sqlite", str(tmp_path))
    assert (directory.status, f"{tmp_path} is no file" in directory.err) == (2, True), directory
    (tmp_path / "text.db").write_text("no database, but a text that is long enough to be taken for one" * 9)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (n)").connection.close()
    for name in ("text.db", "other.db"):
        strange = cli("import", "openai-sqlite", str(tmp_path / name))
        assert (strange.status, "holds no sessions of the OpenAI Agents SDK" in strange.err) == (3, True), strange
    lacking = cli("import", "crewai-sqlite", str(tmp_path / "other.db"))
    assert (lacking.status, "pip install 'statecache[crewai]'" in lacking.err) == (3, True), lacking
    for words in (("openai-sqlite",), ("openai-sqlite", "x", "--replace"), ("runs.jsonl", "more"),
                  ("runs.jsonl", "--namespace", "n")):  # fmt: skip
        assert cli("import", *words).status == 2
