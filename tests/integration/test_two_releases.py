"""Two releases side by side: the older one never takes away what the newer one wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, SchemaNewer, Settings, VersionConflict
from tests.support.releases import NEW, OLD
from tests.support.workers import at_work

KEY = "runs/42"
WRITTEN = NEW("refund", 1, 7.5)


class Other(msgspec.Struct):
    """A value of another class, of which each field has a default."""

    count: int = 0


@pytest.fixture
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker at work."""
    async with at_work(settings):
        yield


@pytest.fixture
async def newer(settings: Settings) -> AsyncIterator[Any]:
    """The newer release's view, which has written a state."""
    async with AsyncStateCache(settings=settings) as cache:
        runs = cache.namespace("runs", type=NEW)
        await runs.create("42", WRITTEN)
        yield runs


def _next(run: Any) -> Any:
    return msgspec.structs.replace(run, steps=run.steps + 1)


async def _is_whole(newer: Any, steps: int = 1) -> None:
    state = await newer.get("42")
    assert state is not None
    assert state.value == msgspec.structs.replace(WRITTEN, steps=steps)


@pytest.mark.parametrize("view", ["typed", "by call"])
async def test_an_update_is_refused_before_its_function_is_called(
    newer: Any, client: AsyncStateCache, view: str
) -> None:
    called: list[Any] = []
    older, name = (client.namespace("runs", type=OLD), "42") if view == "typed" else (client, KEY)
    with pytest.raises(SchemaNewer) as caught:
        await older.update(name, called.append, type=OLD)
    assert (caught.value.key, caught.value.path) == (KEY, "$.budget")
    assert caught.value.stored.startswith("Run@1#")
    assert called == []
    await _is_whole(newer)


async def test_compare_and_set_is_refused(newer: Any, client: AsyncStateCache) -> None:
    older = client.namespace("runs", type=OLD)
    state = await older.get("42")
    assert state is not None
    for expected in (state, state.change_id):
        with pytest.raises(SchemaNewer):
            await older.set("42", _next(state.value), expected=expected)
        with pytest.raises(SchemaNewer):
            await client.set(KEY, _next(state.value), expected=expected)
    await _is_whole(newer)
    await newer.update("42", _next)
    for expected in (state, state.change_id):
        with pytest.raises(VersionConflict):
            await older.set("42", _next(state.value), expected=expected)
    await _is_whole(newer, 2)


async def test_a_transaction_is_refused_where_it_has_read(newer: Any, client: AsyncStateCache) -> None:
    def work(tx: Any) -> None:
        tx.set("42", _next(tx.get("42").value))

    async def async_work(tx: Any) -> None:
        tx.set("42", _next((await tx.get("42")).value))

    older = client.namespace("runs", type=OLD)
    with pytest.raises(SchemaNewer):
        await older.transact(["42"], async_work if isinstance(client, AsyncStateCache) else work)
    await _is_whole(newer)


async def test_a_transaction_that_has_not_read_drops_nothing_either(newer: Any, client: AsyncStateCache) -> None:
    older = client.namespace("runs", type=OLD)
    for view, name in ((older, "42"), (client, KEY)):
        with pytest.raises(SchemaNewer) as caught:
            await _transacted(view, name, lambda tx, name=name: tx.set(name, OLD("other", 1)))  # type: ignore[misc]
        assert (caught.value.key, caught.value.path) == (KEY, "$.budget")
    await _is_whole(newer)
    await _transacted(newer, "42", lambda tx: tx.set("42", msgspec.structs.replace(WRITTEN, steps=2)))
    await _is_whole(newer, 2)

    def replaced(tx: Any) -> None:
        tx.delete("42")
        tx.create("42", OLD("other", 1))

    await _transacted(older, "42", replaced)  # somebody has said that what was there is to go
    await _transacted(client, KEY, lambda tx: tx.set(KEY, Other(3)))  # another class is no older release
    await _transacted(older, "42", lambda tx: tx.set("42", OLD("another", 1)))  # which its type cannot read at all
    with pytest.raises(SchemaNewer):  # it is all that the namespace holds, says its type
        await _transacted(client.namespace("runs", type=Other), "42", lambda tx: tx.set("42", Other(4)))
    await _transacted(client, KEY, lambda tx: tx.set(KEY, {"plain": 1}))
    state = await client.get(KEY)
    assert state is not None
    assert (state.value, state.version) == ({"plain": 1}, 6)


async def _transacted(view: Any, name: str, work: Callable[[Any], None]) -> None:
    async with view.transaction(name) as tx:
        work(tx)


async def test_a_steps_result_is_not_applied_and_nothing_happens(
    newer: Any, client: AsyncStateCache, working: None
) -> None:
    effects: list[int] = []
    older = client.namespace("runs", type=OLD)
    with pytest.raises(SchemaNewer):
        await older.step("42", "charge", lambda step: effects.append(1), apply=lambda run, result: _next(run))
    assert effects == []
    await newer.step("42", "charge", lambda step: effects.append(1), apply=lambda run, result: _next(run))
    await _is_whole(newer, 2)


async def test_what_is_not_read_or_read_whole_is_written_as_before(newer: Any, client: AsyncStateCache) -> None:
    older = client.namespace("runs", type=OLD)
    await client.update(KEY, lambda run: run | {"steps": 5})
    await _is_whole(newer, 5)
    state = await client.get(KEY)
    assert state is not None
    await client.set(KEY, state.value | {"steps": 6}, expected=state)
    await _is_whole(newer, 6)
    await older.set("42", OLD("other", 1))
    await older.update("42", _next)
    assert (await older.delete("42", expected=(await older.get("42")))) is not None


async def test_the_newer_release_goes_on_from_what_the_older_one_wrote(client: AsyncStateCache) -> None:
    older, newer = client.namespace("runs", type=OLD), client.namespace("runs", type=NEW)
    await older.create("42", OLD("refund", 1))
    state = await newer.update("42", _next)
    assert state.value == NEW("refund", 2, 0.0)
    with pytest.raises(SchemaNewer):
        await older.update("42", _next)
