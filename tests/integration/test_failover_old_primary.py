"""An old primary that went on by itself: its writes never reach the lineage, and are never dropped unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import msgspec
import pytest

from statecache import AsyncStateCache
from statecache.errors import Forked, OutcomeUnknown, PostgresUnavailable, Unavailable
from tests.fixtures.faults import through
from tests.support.failed_over import parted
from tests.support.fault_proxy import FaultProxy
from tests.support.gate_world import Fenced, World

KEY = "runs/42"


def test_an_old_primarys_writes_never_reach_the_lineage(shard: World) -> None:
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    shard.check(b)
    row, epochs = shard.row(), shard.epochs()

    alone = [shard.put(a, KEY, number) for number in range(3)]
    with pytest.raises(Fenced):
        shard.flush(a)
    for authority in ("client", "worker"):
        with pytest.raises(Unavailable, match="operator's word"):
            shard.open(a, authority)
    assert (shard.row(), shard.epochs()) == (row, epochs)

    truth = shard.put(b, KEY, "the lineage")
    shard.flush(b)
    assert shard.chain(KEY)[1:] == [truth.change_id]
    assert not {state.change_id for state in alone} & set(shard.chain(KEY))
    shard.check(b)


def test_what_an_old_primary_still_takes_is_kept_before_it_is_wiped(shard: World) -> None:
    """A worker that still reaches it cannot flush it, nor open it; somebody was acknowledged what it holds."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    shard.put(b, "runs/50", "the lineage")
    first = [shard.put(a, KEY, number) for number in range(3)]
    with pytest.raises(Unavailable, match="operator's word"):
        shard.open(a, "client")
    assert shard.conflicts() == set(), "that is not for an agent to write"
    refused = shard.gate(a)
    for more in range(2):
        with pytest.raises(Unavailable, match="operator's word"):
            refused.open()
        assert shard.conflicts() == {state.change_id for state in first}
        assert len(shard.entries(a)) == 4 + more, "it is left as it is"
        first.append(shard.put(a, f"runs/6{more}", "still acknowledged"))
    with pytest.raises(Unavailable, match="operator's word"):
        refused.open()
    assert refused.rescued == 5
    shard.demote(a, b)
    assert shard.conflicts() == {state.change_id for state in first}
    with pytest.raises(Forked):
        shard.client(b).wait_durable(first[0], timeout=60)
    lost = shard.client(a).lost()
    assert [(one.change_id, one.kept) for one in lost] == [(state.change_id, True) for state in first]
    shard.flush(b)
    shard.check(b)


def test_a_commit_that_waits_at_an_old_primary_is_applied_again_though_it_was_rescued_there(shard: World) -> None:
    """Its conflict is what somebody may have seen; in the lineage it counts as lost, and its writer still waits."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    alone = shard.put(a, KEY, "alone", change_id="a1b2c3d4e5f6a1b2c3d4e5f6")
    with pytest.raises(Unavailable):
        shard.open(a, "worker")
    assert shard.conflicts() == {alone.change_id}
    agent = shard.client(b)
    again = agent.set(KEY, "alone", change_id=alone.change_id)
    assert again.position != alone.position
    assert agent.outcome(alone.change_id, KEY).verdict == "applied"
    shard.flush(b)
    assert agent.wait_durable(again, timeout=60) == again
    assert shard.chain(KEY)[-1] == alone.change_id
    shard.check(b)


async def test_a_commit_that_waits_for_postgres_at_an_old_primary_is_applied_again_where_its_address_leads_now(
    shard: World,
) -> None:
    """A worker has rescued it meanwhile; its writer still waits, and ends up in the lineage."""
    a, b = parted(shard, KEY)
    network = FaultProxy("127.0.0.1", a.port)
    async with network, AsyncStateCache(settings=through(shard.on(a), redis=network)) as cache:
        writing = asyncio.create_task(cache.set("runs/43", "precious", durability="postgres", timeout=60))
        while not shard.state(a, "runs/43").get("change_id"):
            await asyncio.wait([writing], timeout=0.01)
        alone = shard.state(a, "runs/43")
        shard.open(b, "client")
        with pytest.raises(Unavailable, match="operator's word"):
            shard.open(a, "worker")
        assert shard.conflicts() == {alone["change_id"]}
        network.retarget("127.0.0.1", b.port)
        network.cut_all()
        while not shard.state(b, "runs/43").get("change_id"):
            await asyncio.wait([writing], timeout=0.01)
        shard.flush(b)
        state = await writing
    assert (state.change_id, state.epoch) == (alone["change_id"], shard.row().epoch)
    assert shard.chain("runs/43") == [state.change_id]
    shard.check(b)


def test_an_old_primary_that_is_restarted_is_refused_and_both_servers_are_named(shard: World) -> None:
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    old = shard.replid(a)
    a.kill()
    a.start()
    epochs = shard.epochs()

    for authority in ("client", "worker"):
        with pytest.raises(Unavailable) as refused:
            shard.open(a, authority)
        assert refused.value.reason == "epoch"
        for part in (f"({shard.replid(a)})", f"of {old},", f"of {shard.replid(b)}:", f":{a.port}/", "epoch adopt"):
            assert part in refused.value.detail
        assert a.password not in refused.value.detail
    with pytest.raises(Unavailable, match="operator's word"):
        shard.client(a, writer="of a new agent").set(KEY, "refused at once", timeout=60)
    assert shard.epochs() == epochs
    shard.put(b, KEY, "goes on")
    shard.flush(b)
    shard.check(b)


def test_an_old_primary_that_was_quicker_keeps_the_real_one_closed_and_both_are_named(shard: World) -> None:
    """Whoever comes first continues the row. The other takes no writes that could never be flushed."""
    a, b = parted(shard, KEY)
    a.kill()
    a.start()
    shard.open(a, "client")
    with pytest.raises(Unavailable) as refused:
        shard.put(b, KEY, "never acknowledged", timeout=60)
    assert shard.replid(a) in refused.value.detail
    assert shard.replid(b) in refused.value.detail
    assert shard.state(b, KEY)["version"] == "1"

    shard.open(b, "operator")
    shard.check(b)
    shard.put(b, KEY, "acknowledged")
    shard.flush(b)
    with pytest.raises(Fenced):
        shard.flush(a)


def test_a_returning_branch_goes_to_conflict_and_its_states_to_where_the_lineage_is(shard: World) -> None:
    a, b = parted(shard, KEY)
    shard.put(a, "runs/49", "untouched by the lineage")  # n = 2, lost by the replica, so of the branch
    shard.open(b, "client")
    with shard.client(a).transaction("runs/42", "runs/42/plan") as tx:
        tx.set("runs/42", "branch")
        tx.set("runs/42/plan", "branch")
    shard.put(a, "runs/43", "new in the branch")
    assert shard.client(a).delete("runs/43") is not None
    branch = [(change.change_id, change.key) for entry in shard.entries(a)[1:] for change in entry.changes]
    truth = shard.put(b, KEY, "the lineage")
    shard.put(b, "runs/44", "the lineage")
    shard.flush(b)
    hydrated = shard.client(a).get("runs/44")  # an old primary that still reaches Postgres may even hydrate
    assert hydrated is not None
    unflushed = shard.put(b, "runs/45", "lost with its server, unflushed")
    b.kill()

    (opened,) = shard.open(a, "operator")

    assert (opened.start_n, opened.conflicts) == (3, 5)
    assert shard.sql("SELECT change_id, key FROM conflict ORDER BY n, key") == sorted(branch, key=branch.index)
    shard.check(a)
    agent = shard.client(a)
    found = agent.get(KEY)
    assert found is not None
    assert found.change_id == truth.change_id
    for key in ("runs/42/plan", "runs/43", "runs/49", "runs/45"):
        assert agent.get(key) is None
    written = [shard.put(a, key, "after") for key in (KEY, "runs/42/plan", "runs/43", "runs/49", "runs/44")]
    assert [state.version for state in written] == [3, 1, 1, 1, 2]
    shard.check(a)
    assert shard.flush(a) == 5
    assert shard.chain(KEY)[1:] == [truth.change_id, written[0].change_id]
    assert unflushed.change_id not in shard.conflicts()  # no server holds it any more
    shard.check(a)


def test_what_is_set_aside_leaves_redis_only_when_postgres_holds_it_for_sure(shard: World) -> None:
    """A wait for a synchronous standby that is cancelled shows as a warning only, which the role's default hides."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    branch = shard.put(a, "runs/43", "branch")
    shard.put(b, KEY, "the lineage")
    shard.flush(b)
    b.kill()
    before = len(shard.entries(a))
    hiding = "?options=" + quote("-c client_min_messages=error -c synchronous_commit=off")
    refusal = pytest.raises(PostgresUnavailable, match=r"canceling wait .* synchronous_commit on")
    with _warning_at_commit(shard), refusal:
        shard.open(a, "operator", postgres_url=shard.settings.postgres_url + hiding)
    assert len(shard.entries(a)) == before
    assert shard.state(a, "runs/43")["change_id"] == branch.change_id

    (opened,) = shard.open(a, "operator", postgres_url=shard.settings.postgres_url + hiding)

    assert opened.conflicts == 1
    assert shard.conflicts() == {branch.change_id}
    shard.check(a)


@contextmanager
def _warning_at_commit(shard: World) -> Iterator[None]:
    """Let every COMMIT of a conflict warn, and tell for what it waits; a trigger's warning stands in for its own."""
    warns = "RAISE WARNING 'canceling wait for synchronous replication, synchronous_commit %', "
    warns += "current_setting('synchronous_commit');"
    shard.sql(
        f"CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {warns} RETURN NEW; END $$; "
        "CREATE CONSTRAINT TRIGGER fault AFTER INSERT ON conflict DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION fault()"
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("statecache.core.postgres.connection._is_of_a_function", lambda _: False)
            yield
    finally:
        shard.sql("DROP FUNCTION fault() CASCADE")


def test_what_stands_before_the_parting_and_is_not_flushed_is_an_ancestor_and_no_conflict(shard: World) -> None:
    """A key may have both: its state goes, it stays dirty until its ancestor is flushed, and then loads that."""
    a = shard.start("a")
    shard.open(a)
    b = shard.replica(a, "b")
    ancestors = [shard.put(a, KEY, "ancestor"), shard.put(a, "runs/43", "ancestor")]
    shard.in_step(a)
    shard.promote(b)
    shard.open(b, "client")
    b.kill()
    branch = [shard.put(a, KEY, "branch"), shard.put(a, "runs/44", "branch")]

    (opened,) = shard.open(a, "operator")

    assert (opened.start_n, opened.conflicts, opened.dropped) == (2, 2, 2)
    assert shard.conflicts() == {state.change_id for state in branch}
    assert shard.state(a, "runs/43")["change_id"] == ancestors[1].change_id
    shard.check(a)
    agent = shard.client(a)
    with pytest.raises(Unavailable, match="not yet in Postgres"):
        agent.get(KEY, timeout=1)
    shard.flush(a)
    found = agent.get(KEY)
    assert found is not None
    assert found.change_id == ancestors[0].change_id
    shard.check(a)


def test_the_replaced_lineage_may_be_put_back_in_its_turn(shard: World) -> None:
    """Back and forth between two servers: every epoch's start says what the lineage before it was, and nothing else."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    told: dict[str, list[str]] = {"a": [], "b": []}
    for turn in range(4):
        server, other = (a, b) if turn % 2 else (b, a)
        own = told[server.name]
        own += [shard.put(server, f"runs/{turn}-{number}", turn).change_id for number in range(turn + 2)]
        own.append(shard.put(server, KEY, turn).change_id)
        shard.flush(server, most=turn)
        shard.check(server)
        shard.open(other, "operator")
        shard.check(other)
    everything = {*told["a"], *told["b"]}
    flushed = {change_id for (change_id,) in shard.sql("SELECT change_id FROM change WHERE n > 1")}
    assert flushed < everything
    shard.open(b, "operator")
    shard.open(a, "operator")
    assert shard.conflicts() == everything - flushed
    shard.check(a)
    shard.put(a, KEY, "after")
    shard.flush(a)
    shard.chain(KEY)


def test_writes_during_an_operators_adoption_are_in_the_lineage_or_in_conflict(shard: World) -> None:
    """The old primary's gate is open to its own agents until it is reserved: what comes after the look counts."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    early = shard.put(a, KEY, "before the look")
    late = []

    def agents_go_on(moment: str) -> None:
        if moment == "before gate_reserve":
            late.append(shard.put(a, "runs/43", "between look and reservation"))
        elif moment == "after gate_reserve":
            with pytest.raises(Unavailable):
                shard.client(a).set("runs/44", "after the reservation", timeout=1)

    (opened,) = shard.open(a, "operator", tap=agents_go_on, reservation_s=60)
    assert opened.conflicts == 2
    assert shard.conflicts() == {early.change_id, late[0].change_id}
    shard.check(a)


def test_entries_that_cannot_be_read_or_stored_are_kept_raw(shard: World) -> None:
    """Of a newer release, damaged, or with data that Postgres refuses: kept in quarantine, and the gate opens."""
    a, b = parted(shard, KEY)
    shard.open(b, "client")
    good = shard.put(a, KEY, "branch")
    raw, changes = shard.raw(a), shard.keys.changes(0)
    entry = raw.xrevrange(changes, count=1)[0][1]
    epoch = shard.meta(a)["epoch"]
    newer = entry | {"format": "3", "change_id": "newer", "key1": "runs/50"}
    refused = entry | {"change_id": "refused", "writer": "a NUL \0 here", "key1": "runs/51"}
    for n, fields in ((3, newer), (4, {"what": "is this"}), (5, refused)):
        raw.xadd(changes, fields, id=f"{epoch}-{n}")
        raw.hset(shard.keys.meta(0), mapping={"n": n, "entries": n})

    (opened,) = shard.open(a, "operator")

    assert opened.conflicts >= 1
    assert shard.conflicts() == {good.change_id}
    parked = shard.sql("SELECT n, change_id, keys, entry FROM quarantine ORDER BY n")
    assert [row[:3] for row in parked] == [(3, "newer", ["runs/50"]), (4, "", []), (5, "refused", ["runs/51"])]
    assert msgspec.msgpack.decode(parked[1][3]) == [b"what", b"is this"]
    shard.check(a)
    shard.put(a, KEY, "after")
    shard.flush(a)
    shard.check(a)


def test_a_change_that_was_applied_again_in_the_lineage_is_no_conflict(shard: World) -> None:
    """Its writer never heard of the first time, which was lost with the old primary, and repeated it."""
    a, b = parted(shard, KEY)
    first = shard.put(a, KEY, "twice", change_id="a1b2c3d4e5f6a1b2c3d4e5f6")
    other = shard.put(a, "runs/43", "once")
    shard.open(b, "client")
    again = shard.put(b, KEY, "twice", change_id=first.change_id)
    assert (again.version, again.change_id) == (first.version, first.change_id)
    shard.flush(b)

    shard.open(a, "operator")
    assert shard.conflicts() == {other.change_id}
    shard.check(a)
    found = shard.client(a).get(KEY)
    assert found is not None
    assert found.position == again.position


async def test_a_change_that_only_the_old_primary_goes_on_to_hold_is_not_repeated_for_ever(
    shard: World, postgres_proxy: FaultProxy
) -> None:
    """The lineage has passed its position without it, and the server that it is repeated at says that it is applied."""
    a, b = parted(shard, KEY)
    async with FaultProxy("127.0.0.1", a.port) as network:
        behind = through(shard.on(a), redis=network, postgres=postgres_proxy)
        async with AsyncStateCache(settings=behind) as cache:
            look = network.arm("hold_request", at=b"excepted")
            writing = asyncio.create_task(cache.set(KEY, "alone", durability="postgres"))
            await look.wait()
            shard.open(b, "client")
            shard.put(b, KEY, "the lineage")
            shard.flush(b)
            asked = postgres_proxy.arm("hold_request", at=b"'quarantine'")
            network.refusing = True
            network.cut_all()
            await asked.wait()
            network.refusing = False
            asked.release()
            with pytest.raises(OutcomeUnknown, match="flushed past it") as unknown:
                await writing
    assert (unknown.value.change_id, unknown.value.keys) == (shard.state(a, KEY)["change_id"], (KEY,))
    assert bytes(postgres_proxy.requests).count(b"'quarantine'") == 1, "nobody goes on asking until the time is up"
