"""The part of the machine in which clients are refused: what they expected, a used change_id, a level, a lost right.

Nothing is applied by what is refused, and what Redis and Postgres hold after it is what they held before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from statecache import (
    AsyncStateCache,
    ChangeIdReused,
    ConfigurationError,
    DurabilityNotMet,
    DurabilityRefused,
    OutcomeUnknown,
    RedisUnavailable,
    Settings,
    VersionConflict,
)
from tests.simulation.expectation import Expectation

T = TypeVar("T")
GROUPS = ("runs/1", "runs/2")
NAMES = ("", "/plan", "/log")
CLIENTS = st.sampled_from((0, 1))
KEYS = st.sampled_from([group + name for group in GROUPS for name in NAMES])
PAIRS = st.sampled_from([(group, group + name) for group in GROUPS for name in NAMES[1:]])
FORGOTTEN = 9
"""After so many others a change is no longer in its state's `recent`, and is looked up where it is repeated."""
_WORD = "secret"


def with_user_of_its_own(settings: Settings, raw: Any) -> Settings:
    """Return the settings of a Redis user of this deployment, who may do everything as long as nobody changes that."""
    name, parts = settings.prefix, urlsplit(settings.redis_url)
    raw.execute_command("ACL", "SETUSER", name, "reset", "on", f">{_WORD}", f"~{name}:*", f"&{name}:*", "+@all")
    netloc = f"{name}:{_WORD}@{parts.netloc.rpartition('@')[2]}"
    return settings.model_copy(update={"redis_url": parts._replace(netloc=netloc).geturl()})


class Refusals(RuleBasedStateMachine):
    """The rules of refusals; the machine brings the rest."""

    settings: Settings
    raw: Any
    expected: Expectation
    values: Iterator[int]
    clients: list[AsyncStateCache]
    run: Callable[[Coroutine[Any, Any, T]], T]

    async def _set(self, client: AsyncStateCache, key: str, **more: Any) -> None:
        value = next(self.values)
        state = await client.set(key, value, **more)
        self.expected.took(key, "set", value, state)

    @rule(who=CLIENTS, key=KEYS, back=st.integers(-3, 2))
    def set_what_was_expected(self, who: int, key: str, back: int) -> None:
        chain = self.expected.chain(key)
        if back < len(chain):
            self.run(self._set_expecting(self.clients[who], key, None if back < 0 else chain[-1 - back].change_id))

    async def _set_expecting(self, client: AsyncStateCache, key: str, expected: str | None) -> None:
        compared = expected is not None or self.expected.exists(key)
        tip = self.expected.chain(key)[-1].change_id if compared else None
        try:
            await self._set(client, key, expected=expected)
        except VersionConflict as conflict:
            assert expected != tip
            told = conflict.actual
        else:
            told = expected
        assert told == tip

    @rule(who=CLIENTS, key=KEYS, back=st.integers(0, 9))
    def use_a_change_id_again(self, who: int, key: str, back: int) -> None:
        chain = self.expected.chain(key)
        if back < len(chain) and chain[-1 - back].change_id:
            self.run(self._use_again(self.clients[who], key, len(chain) - 1 - back))

    async def _use_again(self, client: AsyncStateCache, key: str, at: int) -> None:
        change = self.expected.chain(key)[at]
        with pytest.raises(ChangeIdReused) as refused:
            await client.set(key, next(self.values), change_id=change.change_id)
        assert (refused.value.key, refused.value.version) == (key, at + 1)
        if change.op == "set":
            state = await client.set(key, change.value, change_id=change.change_id)
            assert (state.version, state.change_id) == (at + 1, change.change_id)

    @rule(who=CLIENTS, key=KEYS, more=st.sampled_from((0, 1, FORGOTTEN)))
    def repeat_at_disk(self, who: int, key: str, more: int) -> None:
        self.run(self._repeat_at_disk(self.clients[who], key, more))

    async def _repeat_at_disk(self, client: AsyncStateCache, key: str, more: int) -> None:
        """Repeat a write at `disk` while the disk is synced, and while it is not: finding the change is not enough."""
        for _ in range(1 + more):
            await self._set(client, key)
        at = len(self.expected.chain(key)) - 1 - more
        change = self.expected.chain(key)[at]
        repeat: dict[str, Any] = {"change_id": change.change_id, "durability": "disk"}
        try:
            self.raw.config_set("appendfsync", "always")
            assert (await client.set(key, change.value, **repeat)).version == at + 1
            self.raw.config_set("appendfsync", "no")
            with pytest.raises((DurabilityNotMet, DurabilityRefused, OutcomeUnknown, RedisUnavailable)):
                await client.set(key, change.value, timeout=0.25, **repeat)
        finally:
            self.raw.config_set("appendfsync", "everysec")

    @rule(who=CLIENTS, pair=PAIRS, right=st.sampled_from(("hset", "persist", "zadd")))
    def lose_a_right(self, who: int, pair: tuple[str, str], right: str) -> None:
        self.run(self._lose_right(self.clients[who], pair, right))

    async def _lose_right(self, client: AsyncStateCache, pair: tuple[str, str], right: str) -> None:
        for key in pair:  # the gate is open then, and the states are there: others need rights for that too
            await self._set(client, key)
        self.raw.execute_command("ACL", "SETUSER", self.settings.prefix, f"-{right}")
        try:
            with pytest.raises(ConfigurationError):
                await self._write_both(client, pair)
        finally:
            self.raw.execute_command("ACL", "SETUSER", self.settings.prefix, f"+{right}")

    async def _write_both(self, client: AsyncStateCache, pair: tuple[str, str]) -> None:
        async with client.transaction(*pair) as tx:
            for key in pair:
                tx.set(key, next(self.values))
