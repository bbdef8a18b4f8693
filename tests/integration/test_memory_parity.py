"""A client in memory does what one on servers does: the same calls give the same values, errors and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from statecache import Append, Create, Delete, Durability, Increment, Set, Settings, StateCache, StateCacheError
from statecache.core.read.listed import ORDERS
from statecache.testing import memory
from statecache.testing.deployments import ThreadWorker

CALLS = 150
NAMES = [f"runs/{group}{part}" for group in "ab" for part in ("", "/x", "/y", "/steps/z")]
VALUES: list[Any] = [1, "two", [3, None], {"n": 4, "meta": {"source": "input"}}, {"n": 4.0}, {"n": 0.5}, True, []]

DURABILITIES: list[Durability] = ["memory", "postgres"]

Call = Callable[[StateCache], Any]


def _failed(*_: Any) -> None:
    raise OSError("it went wrong")


def _call(dice: Random) -> tuple[str, Call]:
    """Return a call, by what is said of it where the two differ."""
    name, other = dice.choice(NAMES), dice.choice(NAMES)
    value, level = dice.choice(VALUES), dice.choice(DURABILITIES)
    order, limit = dice.choice(ORDERS), dice.choice([None, 1, 3])
    wanted = dice.choice([None, {"n": 4}, {"n": 4.0}, {"n": 0.5}, {"meta.source": "input"}])
    calls: dict[str, Call] = {
        f"set {name}": lambda cache: cache.set(name, value, durability=level),
        f"set absent {name}": lambda cache: cache.set(name, value, expected=None),
        f"set seen {name}": lambda cache: cache.set(name, value, expected=cache.get(other) or None),
        f"create {name}": lambda cache: cache.create(name, value),
        f"update {name}": lambda cache: cache.update(name, lambda before: [before], default=0),
        f"update strict {name}": lambda cache: cache.update(name, lambda before: value),
        f"delete {name}": lambda cache: cache.delete(name, durability=level),
        f"get {name}": lambda cache: cache.get(name),
        f"get many {name} {other}": lambda cache: [*cache.get_many([name, other]).values()],
        f"exists {name}": lambda cache: cache.exists(name),
        f"commit {name} {other}": lambda cache: cache.commit([Set(name, value), Create(other, value)]),
        f"commit delete {name} {other}": lambda cache: cache.commit([Delete(name), Set(other, value)]),
        f"increment {name}": lambda cache: cache.increment(name, 3),
        f"append {name}": lambda cache: cache.append(name, value, [value]),
        f"add {name}": lambda cache: cache.add(name, "two", 1),
        f"remove {name}": lambda cache: cache.remove(name, 1, None),
        f"commit modifiers {name} {other}": lambda cache: cache.commit([Append(name, [1]), Increment(other)]),
        f"rename {name} {other}": lambda cache: cache.rename(name, other),
        f"copy {name} {other}": lambda cache: cache.copy(name, other, replace=True),
        f"step {name}": lambda cache: cache.step(name, "s", lambda step: value),
        f"step fails {name}": lambda cache: cache.step(name, "f", _failed, retry=1),
        f"list {order} {limit} {wanted}": lambda cache: [*cache.list("runs/", order=order, limit=limit, where=wanted)],
        f"delete under {name}": lambda cache: cache.delete_many(prefix=f"{name}/"),
        f"lock {name}": lambda cache: _locked(cache, name, value),
        f"transact {name}": lambda cache: cache.transact([name], lambda tx: tx.set(name, value)),
        "namespaces": lambda cache: cache.namespaces(),
    }
    return dice.choice([*calls.items()])


def _locked(cache: StateCache, name: str, value: Any) -> Any:
    with cache.lock(name) as lease:
        return lease.set(name, value)


def _seen(answer: Any) -> Any:
    """Return of an answer what does not differ from one deployment to another."""
    if isinstance(answer, list):
        return [_seen(one) for one in answer]
    if isinstance(answer, dict) and "idempotency_key" in answer:  # a step's record
        return answer["status"], answer["attempts"]
    return (answer.key, _seen(answer.value), answer.version) if hasattr(answer, "parent_change_id") else answer


def _answer(call: Call, cache: StateCache) -> Any:
    try:
        return _seen(call(cache))
    except StateCacheError as error:
        return type(error), getattr(error, "key", None)
    except OSError as error:
        return type(error)


@pytest.fixture
def working(settings: Settings) -> Iterator[ThreadWorker]:
    """A worker of the test's deployment, which goes on by itself."""
    worker = ThreadWorker(settings)
    yield worker
    worker.stop()


@pytest.mark.parametrize("seed", range(4))
def test_the_same_calls_have_the_same_answers(
    sync_cache: StateCache, settings: Settings, working: ThreadWorker, seed: int
) -> None:
    dice = Random(seed)
    with memory(shards=settings.shards) as here:
        for _ in range(CALLS):
            said, call = _call(dice)
            there = _answer(call, sync_cache)
            assert _answer(call, here) == there, said
        assert _history(here) == _history(sync_cache)


def _history(cache: StateCache) -> dict[str, list[tuple[Any, ...]]]:
    """Return every change, by its key."""
    for state in cache.list("runs/"):
        cache.wait_durable(state)
    cache.set("runs/last", 0, durability="postgres")
    found: dict[str, list[tuple[Any, ...]]] = {}
    for change in cache.changes("runs/", follow=False):
        found.setdefault(change.key, []).append((change.op, change.version, change.late))
    return found
