"""Which server counts as one that goes on beside the lineage: asked without a lease, answered by the rules of gates."""

from __future__ import annotations

import pytest

from statecache import AsyncStateCache
from tests.support.failed_over import parted
from tests.support.gate_world import World, once
from tests.support.histories import Psql
from tests.support.polling import pause_thread

KEY = "runs/42"


def test_the_rightful_primary_is_never_taken_for_an_old_one(shard: World) -> None:
    """Whoever looks has no lease and locks nothing: the look counts only where the row was the same before and after.

    Here everybody has writes of his own, and looks at every moment of an opening.
    """
    a, b = parted(shard, KEY)
    lead, old = shard.gate(b), shard.gate(a)
    assert not lead.rescue(), "it was promoted, and its gate is closed"
    assert not old.rescue(), "it is the primary still, for no other has opened the shard"
    shard.put(a, KEY, "of the old primary")

    looked: list[str] = []

    def look(moment: str) -> None:
        if moment not in looked:
            looked.append(moment)
            assert not lead.rescue(), moment

    shard.open(b, tap=look)
    assert "after gate_reserve" in looked
    assert "after begin_epoch" in looked
    shard.put(b, KEY, "of the new one")
    assert not lead.rescue()
    assert shard.conflicts() == set()
    assert old.rescue()
    assert len(shard.conflicts()) == 1


def test_a_row_that_moves_while_a_server_is_looked_at_says_nothing_of_it(shard: World) -> None:
    """As where an operator adopts that server meanwhile, and dies: only the row of before names another one."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    shard.put(a, KEY, "alone")

    def dies(moment: str) -> None:
        if moment == "after begin_epoch":
            raise InterruptedError

    def adopted() -> None:
        with pytest.raises(InterruptedError):
            shard.open(a, "operator", tap=dies)
        while shard.raw(a).time()[0] * 1000 <= int(shard.meta(a)["reserved_until"]):
            pause_thread()

    gate = shard.gate(a)
    gate.tap = once("before gate_look", adopted)
    assert not gate.rescue()
    assert (gate.rescued, shard.conflicts()) == (0, set())
    assert shard.row().replid == shard.replid(a)


def test_a_server_without_a_data_set_or_of_another_deployment_holds_no_branch(shard: World) -> None:
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    shard.put(a, KEY, "alone")
    assert not shard.gate(shard.start("empty")).rescue()
    (ours,) = shard.sql("UPDATE cluster SET id = gen_random_uuid() RETURNING id")
    assert not shard.gate(a).rescue(), "Postgres is another deployment's"
    assert ours
    assert shard.conflicts() == set()


def test_beside_an_older_copy_of_postgres_no_server_holds_a_branch(shard: World) -> None:
    """Its rows name a server of then; what it lacks is not beside the lineage."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    shard.put(b, KEY, "the lineage")
    shard.sql("DELETE FROM epoch WHERE epoch = %s", shard.row().epoch)
    shard.sql("UPDATE shard SET epoch = epoch - 1, replid = %s", shard.replid(a))
    assert not shard.gate(b).rescue()
    assert shard.conflicts() == set()


def test_what_stood_before_a_common_point_that_went_down_is_kept_too(shard: World) -> None:
    """The new primary lost its own end: what the old one still holds of that is in no lineage any more."""
    a, b = parted(shard, KEY)
    both = shard.put(a, "runs/43", "both")
    shard.open(b, "client")
    gate = shard.gate(a)
    alone = shard.put(a, KEY, "alone")
    starts = "UPDATE epoch SET start_n = %s WHERE epoch = %s"
    shard.sql(starts, 2, shard.row().epoch)
    assert gate.rescue()
    assert shard.conflicts() == {alone.change_id}
    shard.sql(starts, 1, shard.row().epoch)
    assert gate.rescue()
    assert shard.conflicts() == {both.change_id, alone.change_id}
    assert gate.rescued == 2


async def test_what_was_kept_of_a_branch_is_no_fork_of_this_data_set(cache: AsyncStateCache, psql: Psql) -> None:
    """Repeated by its writer, it may be applied here since under the same change_id: an opening would delete it."""
    shard = cache._runtime.keys.shard("runs/1")
    for key, cause in (("runs/1", "branch"), ("runs/2", "behind"), ("runs/3", "parent")):
        psql.execute(
            "INSERT INTO conflict (change_id, key, shard, epoch, n, op, version, parent_change_id, value, encoding, "
            "schema, writer, actor, reason, at, cause) "
            "VALUES (%s, %s, %s, 1, 5, 'set', 2, '', '1', 'json', '', '', '', '', now(), %s)",
            [f"of {key}", key, shard, cause],
        )
    between = {"shard": shard, "after": 4, "last": 5, "most": 10}
    found = await cache._runtime.postgres.fetch("forks_between", between, seconds=5)
    assert sorted(row[0] for row in found) == ["runs/2", "runs/3"]
