"""From which version a merge begins, where that version's value was let go, or an earlier merge was taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, LimitExceeded, MergeConflict, Settings, UsageError, VersionNotFound
from statecache.core.history import branches
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flushing
from tests.support.histories import policy, pruned

MAIN, SIDE, OTHER = "runs/main", "runs/side", "runs/other"
Psql = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """A worker that flushes beside the test."""
    async with flushing(worker):
        yield


async def said(client: AsyncStateCache, key: str, *more: str) -> None:
    """Append to what a key says, until it is in Postgres."""
    await client.update(key, lambda then: {**then, "said": [*then["said"], *more]}, durability="postgres")


async def stepped(client: AsyncStateCache, key: str, times: int = 3) -> None:
    """Change another part of a key, so many times, until it is in Postgres."""
    for _ in range(times):
        await client.update(key, lambda then: {**then, "step": then["step"] + 1}, durability="postgres")


async def value(client: AsyncStateCache, key: str) -> Any:
    state = await client.get(key)
    assert state is not None
    return state.value


async def let_go(client: AsyncStateCache, settings: Settings, psql: Psql, key: str, version: int) -> None:
    """Keep the newest value of each key alone; one of another version is gone then."""
    policy(psql, count=1)
    await pruned(settings)
    with pytest.raises(VersionNotFound, match="no longer kept"):
        await client.get_at(key, version=version)


@pytest.fixture
async def begun(client: AsyncStateCache) -> AsyncStateCache:
    """A key and a branch of it, with a client of theirs."""
    await client.set(MAIN, {"said": ["base"], "step": 0}, durability="postgres")
    await client.branch(MAIN, SIDE, durability="postgres")
    return client


@pytest.mark.parametrize("into", [MAIN, SIDE])
async def test_a_base_that_was_let_go_is_read_from_where_the_branch_began(
    begun: AsyncStateCache, settings: Settings, psql: Psql, into: str
) -> None:
    await said(begun, SIDE, "side")
    await stepped(begun, MAIN)
    policy(psql, count=2)
    await pruned(settings)
    with pytest.raises(VersionNotFound, match="no longer kept"):
        await begun.get_at(MAIN, version=1)
    found = await begun.get_at(SIDE, version=1)
    assert found is not None
    assert found.value == {"said": ["base"], "step": 0}
    state = await begun.merge(SIDE if into == MAIN else MAIN, into)
    assert state.value == {"said": ["base", "side"], "step": 3}


async def test_a_branch_without_changes_of_its_own_has_nothing_to_take_in(
    begun: AsyncStateCache, settings: Settings, psql: Psql
) -> None:
    await stepped(begun, MAIN)
    await let_go(begun, settings, psql, MAIN, 1)
    main = await begun.get(MAIN)
    assert await begun.merge(SIDE, MAIN) == main
    assert (await begun.merge(MAIN, SIDE)).value == {"said": ["base"], "step": 3}


async def test_a_base_is_read_from_a_branch_of_the_branch_and_from_another_branch(
    begun: AsyncStateCache, settings: Settings, psql: Psql
) -> None:
    await begun.branch(SIDE, "runs/of-side", durability="postgres")
    await begun.branch(MAIN, OTHER, durability="postgres")
    await said(begun, SIDE, "side")
    await stepped(begun, MAIN)
    await let_go(begun, settings, psql, MAIN, 1)
    await let_go(begun, settings, psql, SIDE, 1)
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side"], "step": 3}
    assert (await begun.merge("runs/of-side", MAIN)).value == {"said": ["base", "side"], "step": 3}


async def test_a_version_that_was_merged_last_is_read_from_where_it_was_taken_as_it_was(
    begun: AsyncStateCache, settings: Settings, psql: Psql
) -> None:
    await said(begun, SIDE, "side")
    await begun.merge(SIDE, MAIN, durability="postgres")
    await said(begun, SIDE, "more")
    policy(psql, count=2)
    await stepped(begun, MAIN, 1)
    psql.execute("UPDATE change SET value = NULL, packed = NULL WHERE key = %s AND version = 2", (SIDE,))
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side", "more"], "step": 1}


async def test_a_base_of_which_no_copy_is_kept_is_told(begun: AsyncStateCache, settings: Settings, psql: Psql) -> None:
    await said(begun, SIDE, "side")
    await stepped(begun, MAIN)
    await let_go(begun, settings, psql, MAIN, 1)
    for pair in ((SIDE, MAIN), (MAIN, SIDE)):
        with pytest.raises(VersionNotFound, match="its value is no longer kept") as caught:
            await begun.merge(*pair)
        assert caught.value.key == MAIN


async def test_what_is_not_the_base_is_not_taken_for_it(begun: AsyncStateCache, settings: Settings, psql: Psql) -> None:
    """A branch whose first version says another digest than the version that it began with."""
    await said(begun, SIDE, "side")
    await stepped(begun, MAIN)
    policy(psql, count=2)
    await pruned(settings)
    psql.execute("UPDATE change SET digest = sha256('other') WHERE key = %s AND version = 1", (MAIN,))
    psql.execute("UPDATE change SET hash = NULL WHERE key = %s", (MAIN,))
    with pytest.raises(VersionNotFound, match="its value is no longer kept"):
        await begun.merge(SIDE, MAIN)


async def taken_in(client: AsyncStateCache) -> None:
    """Merge the branch into the key, both of which were changed."""
    await said(client, SIDE, "side")
    await stepped(client, MAIN, 1)
    assert (await client.merge(SIDE, MAIN)).value == {"said": ["base", "side"], "step": 1}


async def back(client: AsyncStateCache, how: str) -> None:
    """Take a merge back, which made version 3."""
    if how == "undo":
        await client.undo(MAIN)
    elif how == "rollback":
        await client.rollback(MAIN, 2)
    elif how == "undo of the group":
        await client.undo(MAIN, group=True)
    else:
        await stepped(client, MAIN, 2)
        await client.undo(MAIN)
        await client.undo(MAIN)
        await client.undo(MAIN)
    assert await value(client, MAIN) == {"said": ["base"], "step": 1}


@pytest.mark.parametrize("how", ["undo", "rollback", "undo of the group", "several undos"])
@pytest.mark.parametrize("into", [MAIN, SIDE])
async def test_a_merge_that_was_taken_back_is_made_again(begun: AsyncStateCache, how: str, into: str) -> None:
    await taken_in(begun)
    await back(begun, how)
    await said(begun, SIDE, "more")
    state = await begun.merge(SIDE if into == MAIN else MAIN, into)
    assert state.value == {"said": ["base", "side", "more"], "step": 1}
    await said(begun, SIDE, "end")
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side", "more", "end"], "step": 1}
    assert (await begun.merge(MAIN, SIDE)).value == {"said": ["base", "side", "more", "end"], "step": 1}


async def test_a_merge_that_is_brought_back_counts_again(begun: AsyncStateCache) -> None:
    await taken_in(begun)
    await begun.undo(MAIN)
    main = await begun.redo(MAIN)
    assert main.value == {"said": ["base", "side"], "step": 1}
    assert await begun.merge(SIDE, MAIN) == main
    await begun.undo(MAIN)
    main = await begun.rollback(MAIN, 3)
    assert await begun.merge(SIDE, MAIN) == main
    await said(begun, SIDE, "more")
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side", "more"], "step": 1}


async def test_what_both_changed_since_a_merge_was_taken_back_is_a_conflict(begun: AsyncStateCache) -> None:
    await taken_in(begun)
    await begun.undo(MAIN)
    await begun.update(SIDE, lambda then: {**then, "step": 7})
    with pytest.raises(MergeConflict) as caught:
        await begun.merge(SIDE, MAIN)
    assert (caught.value.base, caught.value.paths) == (1, ("step",))
    state = await begun.merge(SIDE, MAIN, function=lambda base, ours, theirs: [base, ours["step"], theirs["step"]])
    assert state.value == [{"said": ["base"], "step": 0}, 1, 7]


async def test_the_merge_before_the_one_that_was_taken_back_counts(begun: AsyncStateCache) -> None:
    await taken_in(begun)
    await begun.update(SIDE, lambda then: {**then, "said": ["base", "side, changed"]})
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side, changed"], "step": 1}
    await begun.undo(MAIN)
    await begun.update(MAIN, lambda then: {**then, "step": 2})
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side, changed"], "step": 2}


async def test_so_many_undos_are_looked_at_and_no_more(begun: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
    await taken_in(begun)
    await begun.undo(MAIN)
    monkeypatch.setattr(branches, "RESTORES_MAX", 0)
    with pytest.raises(LimitExceeded, match="the number of undos, redos and rollbacks behind a merge"):
        await begun.merge(SIDE, MAIN)


async def test_edits_that_were_rolled_back_are_not_brought_back_by_a_branch_of_them(begun: AsyncStateCache) -> None:
    await stepped(begun, MAIN, 2)
    await begun.branch(MAIN, OTHER)
    await begun.rollback(MAIN, 1)
    await said(begun, OTHER, "other")
    assert (await begun.merge(OTHER, MAIN)).value == {"said": ["base", "other"], "step": 0}


async def test_a_branch_that_has_taken_the_merge_in_before_it_was_taken_back_is_refused(begun: AsyncStateCache) -> None:
    await taken_in(begun)
    await begun.merge(MAIN, SIDE)
    await begun.undo(MAIN)
    await said(begun, SIDE, "more")
    for pair in ((SIDE, MAIN), (MAIN, SIDE)):
        with pytest.raises(UsageError, match=f"'{MAIN}' has taken back a merge of '{SIDE}' up to its version 2"):
            await begun.merge(*pair)
    await begun.redo(MAIN)
    assert (await begun.merge(SIDE, MAIN)).value == {"said": ["base", "side", "more"], "step": 1}
