"""What Postgres refused, given up on the record: once, and never beside somebody who takes it in."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from statecache import AsyncStateCache, Settings, VersionConflict
from statecache_workers import quarantine_drop, quarantine_release
from statecache_workers.parked_entries import ParkedAt
from statecache_workers.worker import Worker
from tests.fixtures.flusher import Agents, MakeWorker, flush, flushing, rows
from tests.fixtures.servers import MakeSettings
from tests.support.command_line import CommandLine, Ended, parked_ids
from tests.support.polling import pause

Psql = psycopg.Connection[Any]
NUL = "a\0b"
POISON = "ALTER TABLE {} ADD CONSTRAINT small CHECK (octet_length(value) < 10) NOT VALID"
CURE = "ALTER TABLE {} DROP CONSTRAINT small"
LATE = b"""CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF octet_length(NEW.value) >= 10 THEN RAISE EXCEPTION 'big' USING ERRCODE = '23514'; END IF; RETURN NULL; END $$"""
LATE_POISON = (
    "CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON {} DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION late()"
)
BIG = '"much too big"'
CHAIN = "SELECT version, value, gap FROM change WHERE key = 'runs/1' ORDER BY version"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%FOR UPDATE OF s%%'"


def alter(psql: Psql, statement: str, table: str = "change") -> None:
    psql.execute(statement.format(table).encode())


async def parked_behind(agents: Agents, worker: Worker, psql: Psql, *, before: str = "1") -> str:
    """Park a change of runs/1 behind one with a value that is there, and cure the cause; return the entry's id."""
    agents.commit(("runs/1", before))
    await flush(worker)
    alter(psql, POISON)
    agents.commit(("runs/1", BIG))
    await flush(worker)
    alter(psql, CURE)
    ((shard, epoch, n),) = rows(psql, "SELECT shard, epoch, n FROM quarantine")
    return f"{shard}:{epoch}-{n}"


class Stop:
    """A step of `drop` that waits where it begins, as often as it is gone through; `go` lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self._monkeypatch, self._real, self._step = monkeypatch, getattr(quarantine_drop, step), step
        self._came, self._go = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(quarantine_drop, step, self._stopped)

    async def _stopped(self, *args: Any, **more: Any) -> Any:
        self._came.set()
        await self._go.wait()
        return await self._real(*args, **more)

    async def reached(self) -> None:
        """Wait until the step is come to; others go through it from then on."""
        await self._came.wait()
        self._monkeypatch.setattr(quarantine_drop, self._step, self._real)

    def go(self) -> None:
        """Let the one that was stopped go on."""
        self._go.set()


async def dropping(settings: Settings, parked: str, *, actor: str = "ann") -> quarantine_release.Done:
    """Drop an entry in this event loop, which a Stop can hold up."""
    place = ParkedAt.parse(parked)
    (done,) = await quarantine_drop.drop(settings, [place], actor=actor, reason="why", durability="postgres")
    return done


async def by(cli: CommandLine, parked: str, actor: str = "ann", *more: str) -> Ended:
    return await cli.beside("quarantine", "drop", parked, "--yes", "--actor", actor, "--reason", "why", *more)


async def test_a_dropped_tip_gives_the_value_before_back_as_a_new_version(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, cache: AsyncStateCache
) -> None:
    agents.commit(("runs/1/a", "1"), ("runs/1/gone", "1"), ("runs/1/on", "1"))
    agents.commit({"key": "runs/1/gone", "op": "delete", "value": "", "encoding": ""})
    agents.commit(("runs/1/a", "2"), ("runs/1/b", "2"), ("runs/1/gone", "2"), ("runs/1/on", "2"), reason=NUL)
    await flush(worker)
    held = await cache.get("runs/1/a")
    agents.commit(("runs/1/on", "3"))
    (parked,) = await parked_ids(cli)
    unsure = await cli.beside("quarantine", "drop", parked)
    assert (unsure.status, unsure.err.count("\n")) == (2, 1)
    assert "gives 1 parked entry up" in unsure.err
    assert await parked_ids(cli) == [parked]
    async with flushing(worker):
        done = await cli.beside("quarantine", "drop", parked, "--yes", "--actor", "ann", "--reason", "a test", "--json")
    assert done.status == 0
    assert done.json["dropped"][0]["restored"] == ["runs/1/a", "runs/1/b", "runs/1/gone"]
    assert held is not None
    with pytest.raises(VersionConflict):
        await cache.set("runs/1/a", 5, expected=held)
    state = await cache.get("runs/1/a")
    assert state is not None
    assert (state.value, state.version) == (1, 3)
    assert [await cache.get(f"runs/1/{name}") for name in ("b", "gone")] == [None, None]
    kept = await cache.get("runs/1/on")
    assert kept is not None
    assert kept.value == 3
    await flush(worker)
    assert rows(psql, "SELECT key, version, op, gap, actor FROM change WHERE gap ORDER BY key") == [
        ("runs/1/a", 3, "set", True, "ann"),
        ("runs/1/b", 2, "delete", True, "ann"),
        ("runs/1/gone", 4, "delete", True, "ann"),
        ("runs/1/on", 3, "set", True, ""),
    ]
    assert rows(psql, "SELECT count(*) FROM state WHERE op = 'quarantined'") == [(0,)]


async def test_a_drop_is_on_record_for_ever_and_says_who_when_and_why(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    (parked,) = await parked_ids(cli)
    entry = rows(psql, "SELECT entry FROM quarantine")
    async with flushing(worker):
        for _ in range(2):
            done = await cli.beside("quarantine", "drop", parked, "--yes", "--actor", "ann", "--reason", "why")
            assert done.status == 0
    assert done.out.startswith(f"{parked}  was dropped before: dropped at ")
    assert " by ann: why; parked for 22021: " in done.out
    assert await parked_ids(cli) == []
    assert rows(psql, "SELECT entry FROM quarantine") == entry
    (one,) = (await cli.beside("quarantine", "list", "--dropped", "--json")).json["parked"]
    assert one["dropped"] is True
    assert "by ann: why; parked for 22021: " in one["error"]
    assert one["error"].count("dropped at") == 1
    assert (await cli.beside("quarantine", "drop", "3:9-9", "--yes")).status == 1


async def test_nothing_is_marked_as_dropped_before_postgres_holds_what_was_before_it(
    make_settings: MakeSettings, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, redis_raw: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """No worker runs: were the entry marked, and Redis lost what was committed, nobody would look at the key again."""
    settings = make_settings(timeout_s=3.0, hydrate_token_s=3.0)
    cli, worker = CommandLine(settings, monkeypatch, capsys), make_worker(settings)
    Agents(settings, worker.keys, redis_raw).commit("runs/1", reason=NUL)
    await flush(worker)
    (parked,) = await parked_ids(cli)
    assert (await cli.beside("quarantine", "drop", parked, "--yes")).status != 0
    again = await cli.beside("quarantine", "drop", parked, "--yes")
    assert (again.status, again.err) == (1, "")
    assert again.out.startswith(f"{parked}  stays: 'runs/1' was written since, and Postgres does not hold that yet")
    assert await parked_ids(cli) == [parked]
    await flush(worker)
    monkeypatch.setenv("STATECACHE_TIMEOUT_S", "30")
    assert (await cli.beside("quarantine", "drop", parked, "--yes")).status == 0
    assert await parked_ids(cli) == []


async def test_a_drop_that_was_cut_short_is_finished_by_the_next(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, cache: AsyncStateCache
) -> None:
    """The value before is committed, then whoever drops dies before the record is made."""
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    psql.execute("ALTER TABLE quarantine ADD CONSTRAINT never CHECK (sqlstate <> 'dropped')")
    (parked,) = await parked_ids(cli)
    async with flushing(worker):
        assert (await cli.beside("quarantine", "drop", parked, "--yes")).status != 0
    assert await cache.get("runs/1") is None
    assert "  stays: it is being dropped: " in (await cli.beside("quarantine", "retry", "all")).out
    psql.execute("ALTER TABLE quarantine DROP CONSTRAINT never")
    done = await cli.beside("quarantine", "drop", parked, "--yes", "--json")
    assert (done.status, done.json["dropped"][0]["restored"]) == (0, [])
    await flush(worker)
    assert rows(psql, "SELECT version, op FROM state") == [(2, "delete")]


async def test_what_is_being_dropped_is_not_taken_in(
    settings: Settings, cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = await parked_behind(agents, worker, psql)
    stop = Stop(monkeypatch, "_restored")
    async with flushing(worker):
        drop = asyncio.create_task(dropping(settings, parked))
        await stop.reached()
        for which in (parked, "all"):
            refused = await cli.beside("quarantine", "retry", which)
            assert refused.status == 1
            assert refused.out.startswith(f"{parked}  stays: it is being dropped: ")
        listed = await cli.beside("quarantine", "list")
        assert "\tbeing dropped; 23514 (check violation)\t" in listed.out
        (facts,) = (await cli.beside("quarantine", "list", "--json")).json["parked"]
        assert (facts["reason"], facts["dropped"], facts["being_dropped"]) == ("23514", False, True)
        stop.go()
        done = await drop
    assert (done.done, done.restored) == (True, ["runs/1"])
    assert rows(psql, CHAIN) == [(1, b"1", False), (3, b"1", True)]
    ((error,),) = rows(psql, "SELECT error FROM quarantine WHERE sqlstate = 'dropped'")
    assert " by ann: why; parked for 23514: " in error


async def test_a_drop_that_ended_before_it_restored_anything_is_finished_by_the_next(
    settings: Settings, cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = await parked_behind(agents, worker, psql)
    stop = Stop(monkeypatch, "_restored")
    drop = asyncio.create_task(dropping(settings, parked, actor="bob"))
    await stop.reached()
    drop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drop
    assert await parked_ids(cli) == [parked]
    assert (await cli.beside("quarantine", "retry", "all")).status == 1
    async with flushing(worker):
        assert (await by(cli, parked)).out == f"{parked}  dropped: 1 key went back to what was before\n"
    ((error,),) = rows(psql, "SELECT error FROM quarantine WHERE sqlstate = 'dropped'")
    assert " by ann: why; parked for 23514: " in error
    assert rows(psql, CHAIN) == [(1, b"1", False), (3, b"1", True)]


async def test_a_drop_that_waits_for_a_retry_changes_nothing(
    settings: Settings, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch,
    cache: AsyncStateCache,
) -> None:  # fmt: skip
    parked = await parked_behind(agents, worker, psql)
    place, real = ParkedAt.parse(parked), quarantine_release._spots
    has_read, take = asyncio.Event(), asyncio.Event()

    async def stopped(*args: Any) -> Any:
        has_read.set()
        await take.wait()
        return await real(*args)

    monkeypatch.setattr(quarantine_release, "_spots", stopped)
    async with flushing(worker):
        retry = asyncio.create_task(quarantine_release.retry(settings, [place]))
        await has_read.wait()
        drop = asyncio.create_task(dropping(settings, parked))
        async with asyncio.timeout(20):
            while not drop.done() and rows(psql, WAITING) == [(0,)]:
                await pause()
        take.set()
        (taken,), done = await asyncio.gather(retry, drop)
    assert (taken.done, done.done, done.why) == (True, False, "it is not in quarantine")
    state = await cache.get("runs/1")
    assert state is not None
    assert (state.value, state.version) == ("much too big", 2)


async def test_a_drop_says_that_its_entry_was_taken_in_meanwhile(
    settings: Settings, cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = await parked_behind(agents, worker, psql)
    stop = Stop(monkeypatch, "_restored")
    async with flushing(worker):
        drop = asyncio.create_task(dropping(settings, parked))
        await stop.reached()
        assert (await cli.beside("quarantine", "retry", parked, "--dropped")).status == 0
        stop.go()
        done = await drop
    assert (done.done, done.why) == (False, "it is not in quarantine any more: it was taken in meanwhile")
    assert rows(psql, CHAIN) == [(1, b"1", False), (2, BIG.encode(), False), (3, b"1", False)]


async def test_of_two_drops_at_once_one_makes_the_record_and_the_other_names_it(
    settings: Settings, cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = await parked_behind(agents, worker, psql)
    stop = Stop(monkeypatch, "_recorded")
    async with flushing(worker):
        drop = asyncio.create_task(dropping(settings, parked, actor="bob"))
        await stop.reached()
        first = await by(cli, parked)
        stop.go()
        done = await drop
    assert (first.status, first.out) == (0, f"{parked}  dropped\n")
    assert done.done
    assert done.why.startswith("it was dropped before: dropped at ")
    assert " by ann: why; parked for 23514: " in done.why
    assert len(rows(psql, CHAIN)) == 2


async def test_where_the_claim_is_refused_nothing_is_done(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    agents.commit("runs/1", reason=NUL)
    await flush(worker)
    psql.execute("ALTER TABLE quarantine ADD CONSTRAINT never CHECK (NOT starts_with(sqlstate, 'dropping '))")
    (parked,) = await parked_ids(cli)
    refused = await cli.beside("quarantine", "drop", parked, "--yes")
    assert refused.status == 1
    assert (
        f"{parked}  stays: Postgres refuses to note that it is being dropped: 23514 (check violation): " in refused.out
    )


@pytest.mark.parametrize("when", ["at once", "at COMMIT"])
@pytest.mark.parametrize("table", ["change", "state"])
async def test_where_the_value_before_is_refused_too_nothing_is_done_however_often(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, table: str, when: str
) -> None:
    parked = await parked_behind(agents, worker, psql, before=BIG)
    if when == "at once":
        alter(psql, POISON, table)
    else:
        psql.execute(LATE)
        alter(psql, LATE_POISON, table)
    before = rows(psql, "SELECT * FROM quarantine"), rows(psql, "SELECT * FROM state")
    async with flushing(worker):
        for _ in range(2):
            refused = await by(cli, parked)
            assert refused.status == 1
            assert "stays: Postgres refuses what was before it as well: 23514 (check violation): " in refused.out
            assert "; remove the cause, or write 'runs/1' anew, and drop it then\n" in refused.out
        assert (rows(psql, "SELECT * FROM quarantine"), rows(psql, "SELECT * FROM state")) == before
        assert (await cli.beside("set", "runs/1", "7", "--durability", "postgres")).status == 0
        assert (await by(cli, parked)).out == f"{parked}  dropped\n"
    assert rows(psql, CHAIN)[-1] == (3, b"7", True)


async def test_where_what_restores_it_is_refused_after_all_it_is_not_dropped_and_nothing_piles_up(
    settings: Settings, cli: CommandLine, agents: Agents, worker: Worker, psql: Psql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause comes back when Postgres has taken the value before for a trial."""
    parked = await parked_behind(agents, worker, psql, before=BIG)
    stop = Stop(monkeypatch, "_restored")
    async with flushing(worker):
        drop = asyncio.create_task(dropping(settings, parked))
        await stop.reached()
        alter(psql, POISON)
        stop.go()
        done = await drop
        assert not done.done
        assert "'runs/1' ends with another change behind it that Postgres has refused, " in done.why
        both = await parked_ids(cli)
        (other,) = {*both} - {parked}
        for one in (parked, other, parked):
            assert (await by(cli, one)).status == 1
        assert await parked_ids(cli) == both
        alter(psql, CURE)
        assert (await by(cli, parked)).status == 1, "nothing has restored the key yet"
        assert (await cli.beside("quarantine", "retry", other)).status == 0
        assert (await by(cli, parked)).out == f"{parked}  dropped\n"
    assert rows(psql, CHAIN) == [(1, BIG.encode(), False), (3, BIG.encode(), True)]


async def test_an_entry_is_dropped_before_the_one_that_agents_have_parked_behind_it(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    for reason in ("", NUL, NUL):
        agents.commit("runs/1", reason=reason)
    await flush(worker)
    later, earlier = sorted(await parked_ids(cli), reverse=True)
    async with flushing(worker):
        assert (await by(cli, earlier)).out == f"{earlier}  dropped\n"
        assert (await by(cli, later)).out == f"{later}  dropped: 1 key went back to what was before\n"
    assert rows(psql, CHAIN) == [(1, b"1", False), (4, b"1", True)]


async def test_what_was_dropped_is_taken_in_only_where_that_is_asked_for(
    cli: CommandLine, agents: Agents, worker: Worker, psql: Psql
) -> None:
    parked = await parked_behind(agents, worker, psql)
    async with flushing(worker):
        assert (await by(cli, parked)).status == 0
        refused = await cli.beside("quarantine", "retry", parked)
        assert refused.status == 1
        assert refused.out.startswith(f"{parked}  stays: it was dropped before: dropped at ")
        assert " by ann: why; parked for 23514: " in refused.out
        assert "; --dropped takes it in all the same\n" in refused.out
        assert await cli.beside("quarantine", "retry", "all") == (0, "nothing is in quarantine\n", "")
        assert await parked_ids(cli, "--dropped") == [parked]
        taken = await cli.beside("quarantine", "retry", "all", "--dropped")
    assert taken.status == 0
    assert "  retried: 1 change taken in, 1 gap closed, it had been dropped at " in taken.out
    assert await parked_ids(cli, "--dropped") == []
    assert rows(psql, CHAIN) == [(1, b"1", False), (2, BIG.encode(), False), (3, b"1", False)]
