"""Locks over restarts and failovers: tokens only rise, and what a lost grant leaves behind does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache import StaleToken, Token
from statecache.testing.valkey import Valkey
from tests.fixtures.locks import KEY, LONG
from tests.fixtures.servers import MakeSettings
from tests.support.gate_world import KINDS, World, world

pytestmark = pytest.mark.parametrize("redis_kind", KINDS, indirect=True)


@pytest.fixture
def shard(make_settings: MakeSettings, redis_kind: str, tmp_path: Path) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(make_settings, tmp_path, kind=redis_kind) as made:
        yield made


def _token(shard: World, server: Valkey) -> Token:
    with shard.client(server).lock(KEY, timeout=LONG) as lease:
        lease.set(KEY, str(lease.token))
        return lease.token


def test_tokens_rise_over_a_failover_that_loses_the_count(shard: World) -> None:
    """The promoted replica has not heard of the last tokens, and counts from where it stood."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)  # the first replica of a server changes its replid
    tokens = [_token(shard, a)]
    shard.in_step(a)
    shard.promote(b)
    tokens += [_token(shard, a) for _ in range(5)]
    a.kill()
    tokens += [_token(shard, b) for _ in range(2)]
    assert tokens == sorted(set(tokens))
    assert tokens[-1].count < tokens[-3].count
    assert tokens[-1].epoch > tokens[-3].epoch


def test_a_holder_whose_lease_was_lost_with_its_server_writes_nothing(shard: World) -> None:
    """The promoted replica has not heard of its lease, and has given the lock to another."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    shard.open(a)
    shard.in_step(a)
    shard.promote(b)
    lost = shard.client(a).lock(KEY, ttl=600)
    lease = lost.__enter__()
    a.kill()
    with shard.client(b).lock(KEY) as other:
        written = other.set(KEY, "the second's")
        lease._runtime.redis._dial = other._runtime.redis._dial  # it finds the new primary
        with pytest.raises(StaleToken):
            lease.set(KEY, "late")
        assert lease.lost
        assert other.token > lease.token
    lost.__exit__(None, None, None)
    assert shard.client(b).get(KEY, read="primary") == written
