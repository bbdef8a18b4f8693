"""What becomes of values when LangGraph's threads are imported: their order, and what cannot be read or written."""

from __future__ import annotations

import operator
import signal
from asyncio import to_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import psycopg
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from statecache import Settings
from statecache.adapters.langgraph import StateCacheSaver, importing
from statecache_workers.worker import Worker
from tests.support.command_line import CommandLine
from tests.support.histories import Psql, let_go
from tests.support.langgraph_imports import Numbered, all_told, play, put_in, redis_of_documents, redis_saver
from tests.support.langgraph_stories import METADATA, builder, checkpoint, config
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


def _all_of(values: list[str], written: Sequence[list[str]]) -> list[str]:
    return [*values, *(one for some in written for one in some)]


class Logged(TypedDict):
    log: Annotated[list[str], DeltaChannel(_all_of, list)]


@pytest.mark.parametrize("vendor", ["postgres", "redis", "memory"])
def test_what_tasks_have_written_side_by_side_stays_in_its_order(
    cli: CommandLine, settings: Settings, vendors: str, documents: str, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    """A channel of deltas is made of it, in the order of the tasks' places in the graph."""
    graph = StateGraph(Logged)
    for name in "abcdefgh":
        graph.add_node(name, lambda _, name=name: {"log": [name]})
        graph.add_edge(START, name)
    with ExitStack() as opened:
        theirs: Any
        if vendor == "postgres":
            theirs = opened.enter_context(PostgresSaver.from_conn_string(vendors))
            theirs.setup()
        else:
            theirs = InMemorySaver()
        ended = graph.compile(checkpointer=theirs).invoke({"log": ["in"]}, config("t"))
        ours = opened.enter_context(StateCacheSaver(settings))
        if vendor == "postgres":
            assert cli("import", "langgraph-postgres", vendors).status == 0
        elif vendor == "redis":
            put_in(theirs, opened.enter_context(redis_saver(documents, monkeypatch)), "t")
            assert cli("import", "langgraph-redis", documents).status == 0
        else:
            configs = [one.config for one in reversed([*theirs.list(config("t"))])]
            importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert graph.compile(checkpointer=ours).get_state(config("t")).values["log"] == ended["log"]
        assert ended["log"] == ["in", *"abcdefgh"]


def test_a_thread_that_the_other_cannot_read_is_named_and_those_after_it_are_taken_in(
    cli: CommandLine, settings: Settings, vendors: str
) -> None:
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        for thread in ("a", "b", "c"):
            play(theirs, thread)
        assert isinstance(theirs.conn, psycopg.Connection)
        theirs.conn.execute("UPDATE checkpoint_blobs SET type = 'strange' WHERE thread_id = 'b'")
        for words in (["--dry-run"], [], []):
            taken = cli("import", "langgraph-postgres", vendors, "--json", *words)
            assert (taken.status, list(taken.json["failed"]), taken.json["kept"]) == (1, ["b"], []), taken
            assert ": NotImplementedError: " in taken.json["failed"]["b"]
        assert [len(all_told(ours, thread)) == len(all_told(theirs, thread)) for thread in ("a", "c")] == [True] * 2


def test_a_thread_that_our_serializer_cannot_write_is_named_too(settings: Settings) -> None:
    theirs, threads = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True)), ("a", "m", "z")
    for thread in threads:
        play(theirs, thread)
    builder().compile(checkpointer=theirs).update_state(config("m"), {"count": 1 << 70})
    configs = [one.config for thread in threads for one in reversed([*theirs.list(config(thread))])]
    with StateCacheSaver(settings) as ours:
        done = importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert list(done.failed) == ["m"]
        assert ": TypeError: " in done.failed["m"]
        assert [all_told(ours, one) for one in ("a", "z")] == [all_told(theirs, one) for one in ("a", "z")]


@dataclass
class Said:
    """What is decoded part by part; `when` is asked as it is."""

    what: Any
    when: ClassVar[Callable[[], object]] = int

    def __post_init__(self) -> None:
        Said.when()


@pytest.fixture
def interrupting() -> Iterator[Callable[[], None]]:
    """Have a Ctrl-C come while the next value is decoded."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        Said.when = int
        signal.raise_signal(signal.SIGINT)

    def interrupting() -> None:
        Said.when = interrupt

    yield interrupting
    Said.when = int
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.parametrize("said", [Said("hello"), Said(Said("hello"))], ids=["raised", "taken-for-None"])
def test_an_interrupt_that_a_decoder_loses_ends_the_import_and_blames_no_value(
    settings: Settings, interrupting: Callable[[], None], said: Said
) -> None:
    theirs, one = InMemorySaver(), checkpoint({"said": said})
    configs = [theirs.put(config(thread), one, METADATA, {"said": 1}) for thread in ("a", "b")]
    with StateCacheSaver(settings) as ours:
        interrupting()
        with pytest.raises(KeyboardInterrupt):
            importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert [*ours.list(None)] == []
        done = importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert (done.written, done.failed) == (2, {})
        assert [found.checkpoint for found in ours.list(None)] == [one, one]


def test_an_interrupt_that_ends_the_import_at_once_is_the_same(
    settings: Settings, interrupting: Callable[[], None]
) -> None:
    theirs = InMemorySaver()
    configs = [theirs.put(config("a"), checkpoint({"n": 1}), METADATA, {"n": 1})]
    with StateCacheSaver(settings) as ours:
        interrupting()
        with pytest.raises(KeyboardInterrupt):
            importing.import_checkpoints(configs, theirs, ours, progress=lambda _: Said("hello"))


def test_what_is_encrypted_here_is_there_already_for_the_next_import(settings: Settings) -> None:
    theirs = InMemorySaver()
    play(theirs, "t")
    configs = [one.config for one in reversed([*theirs.list(config("t"))])]
    with StateCacheSaver(settings, serde=EncryptedSerializer(Numbered())) as ours:
        for written, same in ((len(configs), 0), (0, len(configs))):
            done = importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
            assert (done.written, done.same, done.kept, done.failed) == (written, same, [], {})
        assert any(told[4] for told in all_told(ours, "t"))
        assert all_told(ours, "t") == all_told(theirs, "t")
        play(ours, "t", "yes")
        done = importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        assert (done.written, done.same, done.kept) == (0, len(configs), [])


class Text(TypedDict):
    log: Annotated[list[str], operator.add]


def _writer() -> StateGraph[Text]:
    """Return a graph each step of which makes a large value larger, and that asks twice in one node."""
    graph = StateGraph(Text)
    graph.add_node("note", lambda _: {"log": ["noted " * 1000]})
    graph.add_node("ask", lambda _: {"log": [interrupt("first?"), interrupt("second?")]})
    graph.add_edge(START, "note")
    graph.add_edge("note", "ask")
    return graph


def _written(saver: Any, *threads: str) -> None:
    graph = _writer().compile(checkpointer=saver)
    for thread in threads:
        graph.invoke({"log": ["in " * 2000]}, config(thread))


@pytest.mark.parametrize("vendor", ["postgres", "redis"])
async def test_what_a_policy_has_let_go_of_is_there_already_for_the_next_import(
    cli: CommandLine, settings: Settings, vendors: str, documents: str, monkeypatch: pytest.MonkeyPatch, psql: Psql,
    worker: Worker, vendor: str,
) -> None:  # fmt: skip
    with ExitStack() as opened:
        theirs: Any = InMemorySaver()
        there = theirs
        if vendor == "postgres":
            there = theirs = opened.enter_context(PostgresSaver.from_conn_string(vendors))
            theirs.setup()
        else:
            there = opened.enter_context(redis_saver(documents, monkeypatch))
        words = ["import", f"langgraph-{vendor}", vendors if vendor == "postgres" else documents, "--json"]

        async def taken(*more: str) -> Any:
            if vendor == "redis":
                for thread in "abc":
                    await to_thread(put_in, theirs, there, thread)
            return (await to_thread(cli.apart, *words, *more)).json

        await to_thread(_written, theirs, "a", "b")
        assert (await taken())["written"] == 6
        assert await let_go(settings, psql, worker) > 0
        await to_thread(_written, theirs, "b", "c")
        new = len([*await to_thread(list, theirs.list(None))]) - 6
        for more, written in (["--dry-run"], new), ([], new), ([], 0):
            done = await taken(*more)
            assert (done["written"], done["kept"], done["failed"]) == (written, [], {})
        ours = opened.enter_context(StateCacheSaver(settings))
        for thread in "abc":
            found, latest = [await to_thread(one.get_tuple, config(thread)) for one in (ours, theirs)]
            assert found.checkpoint["channel_values"] == latest.checkpoint["channel_values"]


async def test_of_a_source_that_keeps_histories_what_is_lost_is_named(
    settings: Settings, psql: Psql, worker: Worker
) -> None:
    with StateCacheSaver(settings) as theirs:
        await to_thread(_written, theirs, "a")
        configs = [one.config for one in await to_thread(list, theirs.list(config("a")))][::-1]
        small = checkpoint({"n": 1})
        configs.append(await to_thread(theirs.put, config("b"), small, METADATA, small["channel_versions"]))
        assert await let_go(settings, psql, worker) > 0
    with StateCacheSaver(settings) as source, StateCacheSaver(settings, namespace="other") as ours:
        done = await to_thread(importing.import_checkpoints, configs, source, ours, progress=lambda _: None)
        assert list(done.failed) == ["a"]
        assert "no longer kept" in done.failed["a"]
        assert len(await to_thread(all_told, ours, "b")) == 1
