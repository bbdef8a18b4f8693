"""Objects of an agent's own classes, imported with LangGraph's threads where those classes are not there."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from statecache import Settings
from statecache.adapters.langgraph import StateCacheSaver, importing
from statecache.adapters.langgraph.names import Place
from statecache.adapters.plans import call
from tests.support.command_line import CommandLine
from tests.support.langgraph_imports import Numbered, all_told, play, put_in, redis_of_documents, redis_saver
from tests.support.langgraph_stories import METADATA, checkpoint, config
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


class Paid(Enum):
    """A value that is gone on with by its identity."""

    NO = "no"
    YES = "yes"


class Order(BaseModel):
    number: int
    paid: Paid = Paid.NO


@dataclass
class Line:
    sku: str
    tags: set[str]


class Shop(TypedDict, total=False):
    order: Any
    paid: Any
    lines: Any
    count: Any
    done: str


_SHOP = "a_shop"
"""The module of the agent's classes, which is in this process alone, and there only while a test has it so."""


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the classes in a module that no other process can import."""
    monkeypatch.setitem(sys.modules, _SHOP, sys.modules[__name__])
    for one in (Paid, Order, Line):
        monkeypatch.setattr(one, "__module__", _SHOP)


def _pay(state: Shop) -> Shop:
    interrupt(Line("asked", {"a"}))
    return {"done": "refunded" if state["paid"] is Paid.YES else "charged again"}


def _shopping(saver: Any) -> Any:
    graph = StateGraph(Shop)
    lines = [Line("large" * 2000, {f"tag {number}" for number in range(20)})]
    graph.add_node("fill", lambda _: {"order": Order(number=1), "paid": Paid.YES, "lines": lines, "count": {"n": [1]}})
    graph.add_node("pay", _pay)
    graph.add_edge(START, "fill")
    graph.add_edge("fill", "pay")
    return graph.compile(checkpointer=saver)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("strict", ["false", "true"])
def test_objects_are_taken_in_whole_by_a_process_that_does_not_have_their_classes(
    cli: CommandLine, settings: Settings, vendors: str, monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", strict)
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        _shopping(theirs).invoke({"done": ""}, config("t"))
        count = len(all_told(theirs, "t"))
        for words, written, same in (["--dry-run"], count, 0), ([], count, 0), ([], 0, count):
            done = cli.apart("import", "langgraph-postgres", vendors, "--json", *words)
            assert (done.status, done.json["written"], done.json["same"]) == (0, written, same), done
        assert all_told(ours, "t") == all_told(theirs, "t")
        states = ours._clients.run(call("list", f"{Place('t').thread}/cp/"))
        assert [one.value["channel_values"].get("count") for one in states][:1] == [{"value": {"n": [1]}}]
        assert _shopping(ours).invoke(Command(resume="yes"), config("t"))["done"] == "refunded"


class Pickled(SerializerProtocol):
    """A serializer that is not LangGraph's, with a form of its own."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the object as a pickle."""
        return "pickled", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return what was pickled here."""
        return pickle.loads(data[1])


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("serde", [EncryptedSerializer(Numbered()), Pickled()], ids=["encrypted", "pickled"])
def test_objects_are_encrypted_as_they_are_and_what_would_not_be_whole_is_named(
    settings: Settings, vendors: str, monkeypatch: pytest.MonkeyPatch, serde: SerializerProtocol
) -> None:
    whole = isinstance(serde, EncryptedSerializer)
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings, serde=serde) as ours:
        theirs.setup()
        _shopping(theirs).invoke({"done": ""}, config("t"))
        play(theirs, "u")

        def taken(*, dry_run: bool = False) -> importing.ImportedThreads:
            with importing.postgres_checkpoints(vendors) as (source, configs):
                return importing.import_checkpoints(configs, source, ours, progress=lambda _: None, dry_run=dry_run)

        with monkeypatch.context() as without:
            without.delitem(sys.modules, _SHOP)
            for dry_run in (True, False, False):
                done = taken(dry_run=dry_run)
                assert [*done.failed] == ([] if whole else ["t"])
                assert whole or "their classes cannot be imported here" in done.failed["t"]
        assert taken().failed == {}
        for thread in "tu":
            assert all_told(ours, thread) == all_told(theirs, thread)
        assert taken().same == sum(len(all_told(theirs, one)) for one in "tu")


@pytest.mark.usefixtures("shop")
def test_what_was_taken_in_decoded_is_there_already(cli: CommandLine, settings: Settings, vendors: str) -> None:
    """Releases before took in what they had decoded: the parts of sets stand in another order there."""
    with PostgresSaver.from_conn_string(vendors) as theirs, StateCacheSaver(settings) as ours:
        theirs.setup()
        _shopping(theirs).invoke({"done": ""}, config("t"))
        one = checkpoint()
        for saver, numbers in (theirs, range(100)), (ours, reversed(range(100))):
            put = saver.put(config("s"), one, METADATA, {})
            saver.put_writes(put, [("line", Line("", {f"{number}" for number in numbers}))], "task")
        configs = [found.config for found in reversed([*theirs.list(config("t"))])]
        importing.import_checkpoints(configs, theirs, ours, progress=lambda _: None)
        again = cli.apart("import", "langgraph-postgres", vendors, "--json")
        assert (again.status, again.json["written"], again.json["same"]) == (0, 0, len(configs) + 1), again


@pytest.mark.usefixtures("shop")
def test_of_the_vendors_redis_a_thread_whose_classes_are_not_here_is_named(
    cli: CommandLine, settings: Settings, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = InMemorySaver()
    with redis_saver(documents, monkeypatch) as theirs, StateCacheSaver(settings) as ours:
        said = {
            "value": checkpoint({"line": [Line("a", {"b"})]}, version="1"),
            "write": checkpoint({"n": 1}, version="1"),
        }
        for thread, one in said.items():
            put = played.put(config(thread), one, METADATA, one["channel_versions"])
            if thread == "write":
                played.put_writes(put, [("line", {"of": Line("c", {"d"})})], "task")
        play(played, "z")
        for thread in (*said, "z"):
            put_in(played, theirs, thread)
        for words in (["--dry-run"], [], []):
            done = cli.apart("import", "langgraph-redis", documents, "--json", *words)
            assert (done.status, [*done.json["failed"]]) == (1, ["value", "write"]), done
            assert all("Cannot import Line from a_shop" in why for why in done.json["failed"].values())
        assert all_told(ours, "z") == all_told(played, "z")
        assert cli("import", "langgraph-redis", documents).status == 0
        for thread in said:
            assert all_told(ours, thread) == all_told(played, thread)
