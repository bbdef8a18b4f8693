"""Erasures of groups beside agents that go on committing: what these commit goes as a whole, or stays so."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from statecache import AsyncStateCache, Backpressure, OutcomeUnknown, Set, Settings, UsageError
from statecache.core.history.deleting import ROUNDS_MAX
from statecache_workers.verification import verify
from statecache_workers.worker import Worker
from tests.fixtures.flusher import flush, flushing, rows
from tests.support.erasures import HEAD, PAGES, told
from tests.support.histories import Psql
from tests.support.remains import SECRET, in_postgres


class Beside:
    """Another agent, whose commits come before or behind those by which an erasure deletes, by their numbers."""

    def __init__(self, cache: AsyncStateCache, other: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self.other, self.commits, self._number = other, dict[str, list[list[str]]](), 0
        self._commit = cache._runtime.committer.commit
        monkeypatch.setattr(cache._runtime.committer, "commit", self._deletes)

    async def _deletes(self, commit: Any) -> Any:
        self._number += 1
        await self._write(f"before {self._number}")
        done = await self._commit(commit)
        await self._write(f"behind {self._number}")
        return done

    async def _write(self, moment: str) -> None:
        for names in self.commits.get(moment, []) + self.commits.get(moment.split()[0], []):
            await self.other.commit([Set(name, [moment, self._number, SECRET]) for name in names])


OLD, NEW = "runs/1/page/001", "runs/1/page/002"


@pytest.mark.parametrize(("commits", "stays"), [
    ({"before 1": [[HEAD, NEW]]}, []),
    ({"behind 1": [[HEAD, NEW]]}, [HEAD, NEW]),
    ({"behind 1": [[HEAD, NEW], [NEW]]}, [HEAD, NEW]),
    ({"before 1": [[HEAD, NEW]], "behind 1": [[HEAD, NEW]]}, []),
    ({"before 1": [[HEAD, NEW]], "behind 2": [[HEAD, NEW]]}, [HEAD, NEW]),
    ({"before 1": [[HEAD, NEW]], "behind 1": [[HEAD]]}, [HEAD]),
    ({"before 1": [[NEW]], "behind 1": [[HEAD, OLD], [NEW]]}, [HEAD, OLD]),
    ({"before 1": [[NEW]], "behind 1": [[HEAD, OLD], [OLD, NEW]], "before 3": [[HEAD, "runs/1/other"]]}, []),
])  # fmt: skip
async def test_what_one_commit_writes_meanwhile_goes_as_a_whole_or_stays_so(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    commits: dict[str, list[list[str]]], stays: list[str],
) -> None:  # fmt: skip
    await told(cache, HEAD)
    await told(cache, OLD)
    await flush(worker)
    async with AsyncStateCache(settings=settings) as other, flushing(worker):
        Beside(cache, other, monkeypatch).commits |= commits
        proof = await cache.erase(HEAD, group=True)
        assert [state.key async for state in other.list("runs/")] == stays
    assert {HEAD, OLD} <= {*proof.keys} <= {HEAD, OLD, NEW, "runs/1/other"}
    kept = "SELECT DISTINCT key FROM change WHERE op = 'set' AND digest IS NOT NULL ORDER BY key"
    assert rows(psql, kept) == [(key,) for key in stays]
    assert (await verify(settings))[1] == []


TORN = "SELECT n FROM change WHERE op = 'set' GROUP BY n HAVING count(DISTINCT digest IS NOT NULL) > 1"


@pytest.mark.parametrize(("commits", "stays"), [
    ({"before 2": [[HEAD, PAGES[-1]]]}, []),
    ({"behind 1": [[HEAD, PAGES[-1]]]}, []),
    ({"behind 2": [[HEAD, PAGES[-1]]]}, [HEAD, PAGES[-1]]),
    ({"behind 1": [[HEAD, PAGES[-1]]], "behind 2": [[HEAD]]}, []),
    ({"behind 1": [[HEAD, PAGES[-1]]], "behind 3": [[HEAD, PAGES[-1]]]}, [HEAD, PAGES[-1]]),
    ({"behind 1": [[HEAD], [PAGES[0]], [PAGES[-1]], [HEAD, PAGES[1]]]}, [HEAD, *PAGES[:2]]),
    ({"behind 1": [[HEAD, PAGES[-1]]], "before 3": [[HEAD, PAGES[0]], [PAGES[1]]]}, [PAGES[1]]),
])  # fmt: skip
async def test_a_group_that_one_commit_cannot_delete_is_not_torn_between_two(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    commits: dict[str, list[list[str]]], stays: list[str],
) -> None:  # fmt: skip
    await cache.set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    await flush(worker)
    async with AsyncStateCache(settings=settings) as other, flushing(worker):
        Beside(cache, other, monkeypatch).commits |= commits
        await cache.erase(HEAD, group=True)
        assert [state.key async for state in other.list("runs/")] == stays
    kept = "SELECT DISTINCT key FROM change WHERE op = 'set' AND digest IS NOT NULL ORDER BY key"
    assert rows(psql, kept) == [(key,) for key in stays]
    assert rows(psql, TORN) == []
    assert (await verify(settings))[1] == []


OTHERS = [f"runs/1/other/{number:03}" for number in range(30)]
PAIRS = [[*pair] for pair in pairwise(OTHERS)]


async def test_all_that_belongs_to_a_torn_commit_goes_at_once(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    await flush(worker)
    async with AsyncStateCache(settings=settings) as other, flushing(worker):
        beside = Beside(cache, other, monkeypatch)
        beside.commits |= {"behind 1": [[PAGES[-1], OTHERS[0]]], "behind 2": PAIRS, "behind 3": PAIRS}
        proof = await cache.erase(HEAD, group=True)
        assert [state.key async for state in other.list("runs/")] == OTHERS
    assert (len(proof.positions), {*OTHERS} <= {*proof.keys}) == (3, True)
    assert rows(psql, TORN) == []
    assert (await verify(settings))[1] == []


async def test_what_is_not_flushed_belongs_to_it_too(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told(cache, HEAD)
    await flush(worker)
    fetch, looks = cache._runtime.postgres.fetch, 0
    async with AsyncStateCache(settings=settings) as other, flushing(worker):
        Beside(cache, other, monkeypatch).commits |= {"before 1": [[HEAD, OTHERS[0]]]}

        async def writes_behind(name: str, parameters: Any, *, seconds: float) -> Any:
            nonlocal looks
            found = await fetch(name, parameters, seconds=seconds)
            looks += name == "erase_between"
            if name == "erase_between" and looks == 1:
                for names in PAIRS:
                    await other.commit([Set(key, SECRET) for key in names])
            return found

        monkeypatch.setattr(cache._runtime.postgres, "fetch", writes_behind)
        proof = await cache.erase(HEAD, group=True)
        assert [state.key async for state in other.list("runs/")] == []
    assert (len(proof.positions), looks) == (2, 2)
    assert rows(psql, TORN) == []


async def test_postgres_is_waited_for_once_all_is_deleted(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    await flush(worker)
    commit, sent, all_sent = cache._runtime.committer.commit, 0, asyncio.Event()

    async def counts(one: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 2:
            all_sent.set()
        return await commit(one)

    monkeypatch.setattr(cache._runtime.committer, "commit", counts)
    erasing = asyncio.create_task(cache.erase(HEAD, group=True, timeout=5))
    waiting = asyncio.create_task(all_sent.wait())
    await asyncio.wait({erasing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    async with flushing(worker):
        proof = await erasing
    assert (len(proof.positions), len(proof.keys)) == (2, 301)
    assert in_postgres(psql) == set()


async def test_a_delete_that_is_refused_behind_another_does_not_say_that_nothing_was_applied(
    cache: AsyncStateCache, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cache.set_many(dict.fromkeys([HEAD, *PAGES], SECRET))
    await flush(worker)
    commit, sent = cache._runtime.committer.commit, list[Any]()

    async def full(one: Any) -> Any:
        sent.append(one)
        if len(sent) == 2:
            raise Backpressure(3, reason="its backlog is full")
        return await commit(one)

    monkeypatch.setattr(cache._runtime.committer, "commit", full)
    with pytest.raises(OutcomeUnknown, match="256 other keys of 'runs/1' are deleted by now: call it again") as told_of:
        await cache.erase(HEAD, group=True)
    assert "its backlog is full" in str(told_of.value)
    assert "Nothing was applied" not in str(told_of.value)
    async with flushing(worker):
        assert len((await cache.erase(HEAD, group=True)).keys) == 301


async def test_who_never_ceases_to_tear_it_is_told(
    settings: Settings, cache: AsyncStateCache, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told(cache, HEAD)
    await flush(worker)
    async with AsyncStateCache(settings=settings) as other, flushing(worker):
        beside = Beside(cache, other, monkeypatch)
        names = [f"runs/1/page/{at:03}" for at in range(ROUNDS_MAX + 2)]
        beside.commits |= {f"before {at + 1}": [[*names[at : at + 2]]] for at in range(ROUNDS_MAX + 1)}
        with pytest.raises(UsageError, match="never ceased to write") as told_of:
            await cache.erase(HEAD, group=True)
        assert f"{names[-2]!r} was committed together with keys that are gone" in str(told_of.value)
        kept = "SELECT DISTINCT key FROM change WHERE op = 'set' AND digest IS NOT NULL ORDER BY key"
        assert rows(psql, kept) == [(names[-2],)] == [(state.key,) async for state in other.list("runs/")]
        beside.commits.clear()
        await cache.erase(HEAD, group=True)
        assert [state.key async for state in other.list("runs/")] == []
