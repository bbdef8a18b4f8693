"""The baton of one state as all processes see it, another process that is played by hand, and spies on a client.

The other process has the baton under a token of its own, and passes it on by the same script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statecache import AsyncStateCache, Settings, StateCache
from statecache.keys import KeySpace
from statecache.lua import script
from statecache.records import FIELDS
from tests.local_reads import KEY, until

THEIRS = "the-token-of-another-process"
LIMIT_S = 60.0


class Street:
    """The baton of one state, as all processes see it, and another process, played by hand."""

    def __init__(self, redis_raw: Any, keys: KeySpace) -> None:
        self._redis = redis_raw
        self._names = keys.baton(KEY)

    @property
    def token(self) -> str | None:
        """The token under which the baton is held or waits to be taken, else None."""
        held: bytes | None = self._redis.hget(self._names[0], "token")
        return None if held is None else held.decode()

    @property
    def calls(self) -> list[bytes]:
        """What has been left for the next process."""
        called: list[bytes] = self._redis.lrange(self._names[1], 0, -1)
        return called

    def lasts_ms(self) -> list[int]:
        """Return the times to live of the baton and of the call, in milliseconds."""
        return [self._redis.pttl(name) for name in self._names[:2]]

    def take(self) -> None:
        """Give the baton to the other process, for good."""
        self._redis.hset(self._names[0], "token", THEIRS)

    def pass_on(self, token: str = THEIRS, *, change_id: str = "") -> int:
        """Pass the other process's baton on; return the script's reply, 0 where it could not."""
        given = [token, "the-next-token", change_id, 60_000, 64 * 1024, *FIELDS]
        return int(self._redis.eval(script("baton").text, 3, *self._names, *given))

    async def waited_for_by(self, count: int) -> None:
        """Wait until that many clients wait to be called."""
        await until(lambda: self._redis.info("clients")["blocked_clients"] >= count)


@pytest.fixture
def street(redis_raw: Any, keys: KeySpace) -> Street:
    """The baton of the state KEY, as all processes see it."""
    return Street(redis_raw, keys)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that sets how many seconds both clients wait for a baton, and how long theirs lasts."""

    def be(seconds: float) -> None:
        for module in ("_async", "_sync"):
            monkeypatch.setattr(f"statecache.{module}.update.batons._PATIENCE_S", seconds)
            monkeypatch.setattr(f"statecache.{module}.update.batons._LASTS_MS", round(seconds * 1000))

    return be


@pytest.fixture
def no_hurry(patience: Callable[[float], None]) -> None:
    """Nobody runs out of patience, however slow the machine."""
    patience(LIMIT_S)


class Count:
    """A function that adds one and notes what it was given; `meanwhile` runs within the first call."""

    def __init__(self, meanwhile: Callable[[], Any] | None = None) -> None:
        self.given: list[Any] = []
        self._meanwhile = meanwhile

    def __call__(self, value: int) -> int:
        self.given.append(value)
        if self._meanwhile is not None and len(self.given) == 1:
            self._meanwhile()
        return value + 1


def counted_reads(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the key of every read that the client sends to the primary, in the list returned."""
    sent: list[str] = []
    record = client.runtime.reader.record

    def noting(key: str, **more: Any) -> Any:
        sent.append(key)
        return record(key, **more)

    monkeypatch.setattr(client.runtime.reader, "record", noting)
    return sent


def scripts_sent(client: AsyncStateCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record, in the list returned, every script that the client sends by itself, not together with a commit."""
    sent: list[str] = []
    send = client.runtime.redis.script

    def noting(name: str, *given: Any, **more: Any) -> Any:
        sent.append(name)
        return send(name, *given, **more)

    monkeypatch.setattr(client.runtime.redis, "script", noting)
    return sent


def quicker(settings: Settings, value: Any) -> Callable[[], None]:
    """Return a function with which somebody else writes the state, or deletes it for None."""

    def write() -> None:
        with StateCache(settings=settings) as somebody:
            if value is None:
                somebody.delete(KEY)
            else:
                somebody.set(KEY, value)

    return write
