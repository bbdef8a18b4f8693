"""The public surface: its names, what can be pickled, what is refused before anything is connected."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import statecache
from statecache import (
    AsyncStateCache,
    ConfigurationError,
    InvalidKey,
    OutcomeUnknown,
    Position,
    Settings,
    State,
    StateCache,
    StateCacheError,
    UsageError,
    VersionConflict,
)
from tests.support.awaited import awaited

VERBS = (
    "get", "get_many", "exists", "list", "warm", "wait_for", "set", "set_many", "create", "update", "touch", "delete",
    "delete_many", "commit", "copy", "rename", "transaction", "transact", "wait_durable", "outcome", "lost", "lock",
    "step", "resolve_step", "changes", "watch", "namespaces", "namespace",
)  # fmt: skip


class Run(msgspec.Struct, frozen=True):
    goal: str


STATE = State(
    key="runs/42",
    value=Run("refund"),
    epoch=3,
    version=7,
    change_id="c" * 24,
    parent_change_id="b" * 24,
    position=Position(3, 12),
    updated_at=datetime(2026, 1, 1, tzinfo=UTC),
    writer="me",
)


def test_every_public_name_is_there_and_listed() -> None:
    for name in statecache.__all__:
        assert getattr(statecache, name) is not None
    assert sorted(statecache.__all__) == list(statecache.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Magic'"):
        statecache.Magic  # noqa: B018


@pytest.mark.parametrize("kind", [AsyncStateCache, StateCache])
def test_what_is_misspelt_is_answered_with_what_was_meant(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"durabilty: there is no such setting \(did you mean durability\?\)"):
        kind(durabilty="postgres")
    client = kind()
    with pytest.raises(UsageError, match=r"namespace\(\) takes no durabilty \(did you mean durability\?\)\. It takes "):
        client.namespace("runs", durabilty="postgres")
    with pytest.raises(UsageError, match=r"takes no typ \(did you mean type\?\)\. It takes type, encoding, "):
        client.namespace("runs").namespace("42", typ=dict)
    with pytest.raises(UsageError, match=r"takes no banana\. It takes "):
        client.namespace("runs", banana=1)


def test_the_package_shows_what_is_public() -> None:
    assert {*dir(statecache)} == {*statecache.__all__, "__version__"}


@pytest.mark.parametrize("verb", VERBS)
def test_both_clients_have_the_same_verbs_with_the_same_arguments(verb: str) -> None:
    one, other = getattr(AsyncStateCache, verb), getattr(StateCache, verb)
    named = [(p.name, p.kind, p.default) for p in inspect.signature(one).parameters.values()]
    assert named == [(p.name, p.kind, p.default) for p in inspect.signature(other).parameters.values()]
    assert one.__doc__


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "namespace"])
def test_every_verb_takes_a_timeout(verb: str) -> None:
    assert "timeout" in inspect.signature(getattr(StateCache, verb)).parameters


def test_a_state_can_be_pickled_and_copied() -> None:
    assert pickle.loads(pickle.dumps(STATE)) == STATE
    assert copy.deepcopy(STATE) == STATE


def test_a_state_is_frozen() -> None:
    with pytest.raises(AttributeError):
        STATE.version = 8  # type: ignore[misc]


@pytest.mark.parametrize("kind", [AsyncStateCache, StateCache])
def test_a_client_and_its_views_refuse_to_be_pickled(kind: Any) -> None:
    client = kind()
    for thing in (client, client.namespace("runs")):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)
        with pytest.raises(TypeError, match="cannot be pickled"):
            copy.copy(thing)


def test_errors_can_be_pickled_and_keep_their_facts() -> None:
    error = pickle.loads(pickle.dumps(VersionConflict("runs/42", "expected", "actual")))
    assert (error.key, error.expected, error.actual) == ("runs/42", "expected", "actual")
    assert str(error) == str(VersionConflict("runs/42", "expected", "actual"))
    unknown = pickle.loads(pickle.dumps(OutcomeUnknown("c" * 24, keys=("runs/42",))))
    assert unknown.change_id == "c" * 24


def test_all_errors_are_one_tree() -> None:
    errors = [thing for name in statecache.__all__ if isinstance(thing := getattr(statecache, name), type)]
    errors = [thing for thing in errors if issubclass(thing, Exception)]
    assert len(errors) > 15
    assert [error for error in errors if not issubclass(error, StateCacheError)] == []


@pytest.fixture(params=["async", "sync"])
def unconnected(request: pytest.FixtureRequest) -> AsyncStateCache:
    """A client of servers that are not there: a test passes only when they are never asked."""
    settings = Settings(redis_url="redis://127.0.0.1:1/0", postgres_url="postgresql://127.0.0.1:1/x", timeout_s=5.0)
    return AsyncStateCache(settings=settings) if request.param == "async" else awaited(StateCache(settings=settings))


@pytest.mark.parametrize("timeout", [0, -1, -0.001, float("nan"), float("inf")])
async def test_a_timeout_that_is_not_a_time_is_refused_by_every_verb(
    unconnected: AsyncStateCache, timeout: float
) -> None:
    calls = [
        unconnected.get("runs/42", timeout=timeout),
        unconnected.set("runs/42", 1, timeout=timeout),
        unconnected.create("runs/42", 1, timeout=timeout),
        unconnected.update("runs/42", lambda value: value, timeout=timeout),
        unconnected.delete("runs/42", timeout=timeout),
        unconnected.transact(["runs/42"], lambda tx: None, timeout=timeout),
        unconnected.wait_durable(STATE, timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="timeout="):
            await call
    with pytest.raises(UsageError, match="timeout="):
        [state async for state in unconnected.list("runs/", timeout=timeout)]
    with pytest.raises(UsageError, match="timeout="):
        async with unconnected.transaction("runs/42", timeout=timeout):
            pass


async def test_a_bad_key_is_refused_by_every_verb_before_any_connection(unconnected: AsyncStateCache) -> None:
    calls = [
        unconnected.get("runs"),
        unconnected.set("runs", 1),
        unconnected.create("runs", 1),
        unconnected.update("runs", lambda value: value),
        unconnected.delete("runs"),
        unconnected.transact(["runs/42", "runs"], lambda tx: None),
    ]
    for call in calls:
        with pytest.raises(InvalidKey, match="'runs'"):
            await call
    with pytest.raises(InvalidKey):
        [state async for state in unconnected.list("runs")]


async def test_arguments_that_make_no_sense_are_refused_before_any_connection(unconnected: AsyncStateCache) -> None:
    calls = [
        unconnected.set("runs/42", 1, durability="forever"),  # type: ignore[arg-type]
        unconnected.set("runs/42", 1, expected=msgspec.structs.replace(STATE, key="runs/43")),
        unconnected.set("runs/42", 1, expected="*"),
        unconnected.set("runs/42", 1, expected=""),
        unconnected.set("runs/42", 1, change_id="short"),
        unconnected.set("runs/42", 1, change_id="with space in it"),
        unconnected.set("runs/42", 1, change_id="c" * 65),
        unconnected.set("runs/42", 1, actor="a\0b"),
        unconnected.set("runs/42", 1, actor="a" * 1025),
        unconnected.set("runs/42", 1, reason="\ud800"),
        unconnected.set("runs/42", 1, reason=5),  # type: ignore[arg-type]
        unconnected.transact([], lambda tx: None),
        unconnected.transact([f"runs/42/{number}" for number in range(257)], lambda tx: None),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            await call
    with pytest.raises(UsageError, match="order"):
        [state async for state in unconnected.list("runs/", order="random")]  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="limit"):
        [state async for state in unconnected.list("runs/", limit=0)]


@pytest.mark.parametrize("kind", [AsyncStateCache, StateCache])
def test_a_namespace_is_checked_when_it_is_made(kind: Any) -> None:
    client = kind()
    for name in ("", "a/b", "a:b", "é", "n" * 65, None):
        with pytest.raises(InvalidKey):
            client.namespace(name)
    with pytest.raises(UsageError, match="encoding"):
        client.namespace("runs", encoding="xml")
    with pytest.raises(UsageError, match="durability"):
        client.namespace("runs", durability="forever")
    for ttl in (timedelta(0), 5):
        with pytest.raises(UsageError, match=r"redis_ttl=.* is not a timedelta above 0"):
            client.namespace("runs", redis_ttl=ttl)
    with pytest.raises(UsageError, match="value_bytes_max"):
        client.namespace("runs", value_bytes_max="1 MB")
    with pytest.raises(UsageError, match="value_bytes_max"):
        client.namespace("runs", value_bytes_max=0)
    with pytest.raises(UsageError, match="value_bytes_max"):
        client.namespace("runs", value_bytes_max=8 * 1024 * 1024 + 1)


def test_what_was_never_used_can_be_closed_and_twice() -> None:
    client = StateCache()
    client.close()
    client.close()

    async def main() -> None:
        async with AsyncStateCache() as cache:
            await cache.close()

    asyncio.run(main())
