"""The tracked connection's answers, one by one: whose they are, and what they say about trust."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hiredis import PushNotification
from redis.exceptions import NoScriptError, ResponseError

from statecache import Settings
from statecache._process import mutex
from statecache.concurrency import TASKS
from statecache.concurrency.waking import TaskSignal
from statecache.core.epoch.newest_epochs import NewestEpochs
from statecache.core.redis.server_clock import ServerClock
from statecache.core.redis.tracked_call import Call
from statecache.core.redis.tracking import TrackedConnection
from statecache.errors import ForeignData, RedisUnavailable
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.near import Near
from statecache.records import FIELDS

KEY = "runs/1"
STATE = [
    b"runs/1",
    b"set",
    b"1",
    b"3",
    b"1",
    b"c" * 24,
    b"",
    b"1-3",
    b"json",
    b"",
    b"2026-01-01T00:00:00.000000Z",
    b"w",
]


class Link:
    """A connection that only remembers whether the server knows the heartbeat."""

    known: bool | None = None
    in_message = False
    buffered = False
    unread_bytes = 0

    def __init__(self, *expected: Any) -> None:
        self.expected = deque(expected)
        self.coming: deque[Any] = deque()

    async def close(self) -> None:
        """Remember nothing."""

    async def heard(self, *, seconds: float) -> Any:
        """Return the next message, or raise it if it is an error."""
        message = self.coming.popleft()
        if isinstance(message, BaseException):
            raise message
        return message

    def knows(self, script: object, known: bool) -> None:
        """Note whether the server knows the script."""
        self.known = known


@pytest.fixture
def near() -> Near:
    """A near cache."""
    return Near(bytes_max=10**6, entries_max=10, window_s=2.0, mutex=mutex(), server_ms=ServerClock().server_ms)


@pytest.fixture
def line(near: Near) -> Any:
    """A line that nothing is connected to, of which all shards are open."""
    tier: Any = SimpleNamespace(io=TASKS, clock=ServerClock())
    made: Any = TrackedConnection(Settings(), KeySpace(), tier, near, NewestEpochs(), owner=object)
    made._open = {*range(64)}
    return made


def test_a_state_has_as_many_fields_as_are_asked_for() -> None:
    assert len(STATE) == len(FIELDS)


def test_two_threads_may_find_at_once_that_the_line_leads_to_an_old_primary(line: Any) -> None:
    class Raced(dict[int, int]):
        def get(self, shard: int, default: Any = None) -> Any:
            return self.pop(shard, default)  # as another thread does between the look and what follows from it

    line._open = Raced({7: 1})
    line.met(7, 2)
    assert line._is_behind
    assert 7 not in line._open


async def test_replies_belong_to_questions_in_their_order(line: Any, near: Near) -> None:
    first, _ = near.reserve(KEY, TaskSignal(), 0.0)
    other, _ = near.reserve("runs/2", TaskSignal(), 0.0)
    link = Link(None, first, 7.5, None, other)
    for reply in (b"OK", STATE, b"master abc ", b"OK", [None] * len(FIELDS)):
        line._answered(link, reply)
    assert first.record is not None
    assert first.record.version == 3
    assert await first.signal.wait(0)
    assert (other.record, other.error) == (None, None)
    assert await other.signal.wait(0)
    with pytest.raises(RedisUnavailable, match="belongs to no request"):
        line._answered(Link(), b"OK")


@pytest.mark.parametrize(("reply", "known"), [([b"OK"], True), (NoScriptError("gone"), False)])
async def test_a_call_s_answer_is_noted_and_wakes_who_waits(line: Any, reply: Any, known: bool) -> None:
    waited, alone = (Call(script("hydrate_absent"), [], [], signal) for signal in (TaskSignal(), None))
    link = Link(alone, waited)
    line._answered(link, reply)
    line._answered(link, reply)
    assert link.known is known
    assert [call.reply for call in (alone, waited)] == [reply if known else None] * 2
    assert await waited.signal.wait(0)


async def test_a_call_is_lost_where_there_is_no_connection(line: Any) -> None:
    call = Call(script("hydrate_absent"), [], [], TaskSignal())
    await line.start(call, seconds=1.0)
    assert await line.answered(call, 60.0)
    assert call.reply is None


async def test_a_call_is_lost_with_its_connection(line: Any) -> None:
    call = Call(script("hydrate_absent"), [], [], TaskSignal())
    line._link = link = Link(call)
    await line._part(link)
    assert await call.signal.wait(0)


async def test_trust_counts_from_the_sending_of_the_heartbeat(line: Any, near: Near) -> None:
    line._answered(Link(7.5), b"master abc ")
    assert near.trusted(9.4)
    assert not near.trusted(9.5)


async def test_a_heartbeat_that_was_not_run_is_no_answer(line: Any, near: Near) -> None:
    link = Link(7.5)
    line._answered(link, NoScriptError("No matching script"))
    assert not near.trusted(7.6)
    assert link.known is False


@pytest.mark.parametrize("reply", [b"slave abc ", ResponseError("LOADING")], ids=str)
async def test_a_server_that_is_no_primary_is_left(line: Any, near: Near, reply: Any) -> None:
    with pytest.raises(RedisUnavailable, match="no primary"):
        line._answered(Link(7.5), reply)
    assert not near.trusted(7.6)


async def test_nothing_more_is_taken_off_a_connection_whose_reader_was_interrupted(line: Any) -> None:
    link = Link(7.5)
    line._link = link
    link.coming += (PushNotification([b"message", b"x"]), KeyboardInterrupt(), b"master abc ")
    await line._take(link, 1.0)
    with pytest.raises(KeyboardInterrupt):  # raised by a signal handler: perhaps it had a push in its hands
        await line._take(link, 1.0)
    with pytest.raises(RedisUnavailable, match="interrupted"):
        await line._take(link, 1.0)


async def test_opting_in_that_is_refused_ends_the_connection(line: Any) -> None:
    with pytest.raises(RedisUnavailable, match="CACHING"):
        line._answered(Link(None), ResponseError("NOPERM"))


async def test_data_of_others_is_told_to_who_reads_it_alone(line: Any, near: Near) -> None:
    for reply in (ResponseError("WRONGTYPE Operation against a key"), [None, *STATE[1:]]):
        reading, _ = near.reserve(KEY, TaskSignal(), 0.0)
        line._answered(Link(reading), reply)
        assert isinstance(reading.error, ForeignData)
        assert near.statistics(0).entries == 0


async def test_a_push_takes_away_what_it_names_or_everything(line: Any, near: Near) -> None:
    def kept() -> int:
        return near.statistics(0).entries

    for key in (KEY, "runs/2"):
        reading, _ = near.reserve(key, TaskSignal(), 0.0)
        line._answered(Link(reading), [key.encode(), *STATE[1:]])
    assert kept() == 2
    line._pushed(PushNotification([b"message", b"x"]))
    line._pushed(PushNotification([b"invalidate", [b"sc:{01}:meta", KeySpace().state(KEY).encode()]]))
    assert kept() == 1
    line._pushed(PushNotification([b"invalidate", None]))
    assert kept() == 0


async def test_a_reply_that_is_nobody_s_state_ends_the_connection(line: Any, near: Near) -> None:
    reading, _ = near.reserve(KEY, TaskSignal(), 0.0)
    with pytest.raises(RedisUnavailable, match="another request"):
        line._answered(Link(reading), b"OK")
