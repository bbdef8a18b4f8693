"""Batches: one exchange for all who ask in one turn of the loop, and nobody the poorer for the company."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from statecache.concurrency import run
from statecache.concurrency.batching import REQUESTS_MAX, WEIGHT_MAX, TaskBatcher, TaskRequest, ThreadBatcher
from statecache.errors import RedisUnavailable
from tests.support.eager_tasks import FACTORY

Requests = Sequence[TaskRequest[Any, Any]]


class Server:
    """A server that answers each question with itself, or with the error that it is; it answers when it is let."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.left = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def go(self, requests: Requests, seconds: float) -> list[Any]:
        self.left.set()
        await self.answers.wait()
        self.batches.append(([request.question for request in requests if not request.gone], seconds))
        return [request.question for request in requests]

    @property
    def carried(self) -> list[list[Any]]:
        return [questions for questions, _ in self.batches]


async def test_who_asks_in_one_turn_goes_in_one_trip_and_gets_the_own_answer() -> None:
    server = Server()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    answers = await asyncio.gather(*(batches.ask(n, weight=1, seconds=5) for n in range(9)))
    assert answers == list(range(9))
    assert await batches.ask("later", weight=1, seconds=5) == "later"
    assert server.carried == [list(range(9)), ["later"]]


async def test_a_trip_is_bounded_in_seats_and_bytes() -> None:
    server = Server()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    await asyncio.gather(*(batches.ask(n, weight=1, seconds=5) for n in range(REQUESTS_MAX + 1)))
    await asyncio.gather(*(batches.ask(n, weight=WEIGHT_MAX // 2, seconds=5) for n in range(3)))
    await batches.ask("heavy", weight=WEIGHT_MAX * 9, seconds=5)
    assert [len(questions) for questions in server.carried] == [REQUESTS_MAX, 1, 2, 1, 1]


async def test_a_trip_lasts_as_long_as_the_least_patient_will_wait_and_others_go_apart() -> None:
    server = Server()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    await asyncio.gather(*(batches.ask(seconds, weight=1, seconds=seconds) for seconds in (4.0, 3.0, 2.0, 9.0, 0.1)))
    assert server.batches == [([4.0, 3.0, 2.0], 2.0), ([9.0], 9.0), ([0.1], 0.1)]


async def test_whoever_gives_up_before_the_questions_are_spelled_is_left_out_and_harms_nobody() -> None:
    server = Server()
    server.answers.clear()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    tasks = [asyncio.create_task(batches.ask(n, weight=1, seconds=5)) for n in range(3)]
    await server.left.wait()
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    server.answers.set()
    assert list(await asyncio.gather(tasks[0], tasks[2])) == [0, 2]
    assert tasks[1].cancelled()
    assert server.carried == [[0, 2]]


async def test_an_error_is_the_askers_own_and_a_failed_trip_is_everyones() -> None:
    server = Server()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    broken = RedisUnavailable("connection", detail="it broke")
    asked = [batches.ask(question, weight=1, seconds=5) for question in (1, broken)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["1", str(broken)]

    async def fail(requests: Requests, seconds: float) -> list[Any]:
        raise broken

    batches = TaskBatcher(fail)
    errors = await asyncio.gather(*(batches.ask(n, weight=1, seconds=5) for n in range(3)), return_exceptions=True)
    assert [str(error) for error in errors] == [str(broken)] * 3
    assert len({id(error) for error in errors}) == 3, "each may be added to"


async def test_a_trip_that_is_cancelled_leaves_nobody_waiting() -> None:
    server = Server()
    server.answers.clear()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    asking = asyncio.create_task(batches.ask(1, weight=1, seconds=5))
    await server.left.wait()
    for batch in batches._under_way:
        batch.cancel()
    await asyncio.wait([asking], timeout=10)
    assert asking.cancelled()


async def test_a_child_of_a_fork_waits_for_no_trip_of_its_parent() -> None:
    server = Server()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    lost = asyncio.create_task(batches.ask("parent", weight=1, seconds=5))
    await asyncio.sleep(0)
    batches.begin_anew(None)  # type: ignore[arg-type]
    assert await batches.ask("child", weight=1, seconds=5) == "child"
    await lost
    assert ["child"] in server.carried


def test_a_thread_goes_at_once_and_alone() -> None:
    async def go(requests: Any, seconds: float) -> list[Any]:
        assert [request.gone for request in requests] == [False]
        return [RedisUnavailable("timeout") if requests[0].question == "no" else (requests[0].question, seconds)]

    batches: ThreadBatcher[Any, Any] = ThreadBatcher(go)
    assert run(batches.ask("yes", weight=1, seconds=5)) == ("yes", 5)
    with pytest.raises(RedisUnavailable):
        run(batches.ask("no", weight=1, seconds=5))


async def test_where_tasks_are_eager_what_is_asked_in_one_turn_still_goes_together() -> None:
    """Such a task runs before its maker goes on: it would send a batch in which nothing stands yet."""
    server, loop = Server(), asyncio.get_running_loop()
    batches: TaskBatcher[Any, Any] = TaskBatcher(server.go)
    before = loop.get_task_factory()
    loop.set_task_factory(FACTORY)
    try:
        asked = [asyncio.create_task(batches.ask(n, weight=1, seconds=5)) for n in range(3)]
        async with asyncio.timeout(5.0):
            assert await asyncio.gather(*asked) == [0, 1, 2]
    finally:
        loop.set_task_factory(before)
    assert server.carried == [[0, 1, 2]]
