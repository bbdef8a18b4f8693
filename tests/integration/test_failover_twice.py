"""Two failovers in a row: a replica that is promoted before it has received the opening on the server before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statecache.errors import Unavailable
from statecache.rules.epochs import Authority
from statecache.testing.valkey import Valkey
from tests.fixtures.servers import MakeSettings
from tests.support.gate_world import KINDS, World, once, world

KEY = "runs/42"


@pytest.fixture(params=KINDS)
def shard(make_settings: MakeSettings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """One shard, with Redis servers that the test starts and kills."""
    with world(make_settings, tmp_path, kind=request.param) as made:
        yield made


def promoted_twice(shard: World) -> tuple[Valkey, Valkey]:
    """Have `b` take over from `a`, and `a` from `b`, which was opened meanwhile: `a` knows nothing of that."""
    a = shard.start("a")
    b = shard.replica(a, "b")
    shard.open(a)
    shard.put(a, KEY, 1)
    shard.flush(a)
    shard.put(a, "runs/43", 1)
    shard.in_step(a)
    shard.promote(b)
    shard.demote(a, b)
    shard.promote(a)
    shard.open(b)
    return a, b


def refused(shard: World, server: Valkey, *authorities: Authority) -> None:
    row = shard.row()
    for authority in authorities:
        with pytest.raises(Unavailable, match="operator's word"):
            shard.open(server, authority)
    assert shard.row() == row


def test_a_worker_that_opened_the_server_before_opens_it(shard: World) -> None:
    a, b = promoted_twice(shard)
    shard.put(b, KEY, 2)
    shard.flush(b)
    shard.put(b, KEY, 3)
    b.kill()
    refused(shard, a, "client", "setup")
    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(a, "worker", vouched=[])
    (opened,) = shard.open(a, "worker")
    assert (opened.conflicts, opened.start_n) == (0, 3)
    shard.check(a)
    assert shard.value(a, KEY) == 2
    assert shard.value(a, "runs/43") == 1


@pytest.mark.parametrize("moment", ["after gate_reserve", "after begin_epoch", "before gate_open"])
def test_whoever_comes_next_finishes_what_a_worker_began(shard: World, moment: str) -> None:
    a, b = promoted_twice(shard)
    b.kill()

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shard.open(a, "worker", tap=once(moment, die))
    shard.open(a, "client")
    shard.check(a)
    assert shard.value(a, "runs/43") == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_went_on_by_itself_since_is_an_old_primary(shard: World, restarts: bool) -> None:
    """It was a replica of the server that the row names, and then opened, and given up for that server again."""
    a, b = promoted_twice(shard)
    shard.open(a, "operator")
    shard.put(a, KEY, "alone")
    shard.open(b, "operator")
    if restarts:
        a.restart()
    refused(shard, a, "client", "worker", "setup")
    shard.put(b, KEY, "the lineage")
    shard.flush(b)
    shard.check(b)


def test_one_that_was_only_reserved_since_is_an_old_primary_too(shard: World) -> None:
    """A reservation does not tell whether the gate was open before it on that server."""
    a, b = promoted_twice(shard)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shard.open(a, "operator", tap=once("after gate_reserve", die))
    refused(shard, a, "client", "worker", "setup")
    shard.check(b)
