"""A short coherence run in every run of the tests, and that it can say no. For a long one: `make coherence`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statecache import AsyncStateCache, Settings, StateCache
from tests.simulation import coherence
from tests.simulation.coherence import Result, run
from tests.simulation.reader import KEYS, PROCESSES, Board, Tasks, Threads
from tests.simulation.severing import FIRST_S, LASTS, PER_20_S, Severing, enough, plan, wanted
from tests.support.polling import pause

SEED, SECONDS = 7, 6.0
WAIT_S = 60.0


async def test_a_short_run_sees_nothing_too_old(tmp_path: Path) -> None:
    """On a machine that was too slow to show much it is run again, for longer."""
    for times in (1, 3, 9):
        told: list[str] = []
        folder = tmp_path / str(times)
        folder.mkdir()
        result = await run(SEED, SECONDS * times, folder, told.append)
        assert result.violations == 0, "\n".join([*told, *result.findings, f"journals: {folder}"])
        if shown := _shows_much(result):
            break
    assert shown, result


def _shows_much(result: Result) -> bool:
    reads = (result.local_hits, result.near["hits"])
    return sum(result.faults.values()) > 5 and min(*reads, result.writes) > 100


def test_a_plan_is_its_seed_and_holds_every_fault() -> None:
    assert plan(7, 20, 1.0) == plan(7, 20, 1.0)
    assert plan(7, 20, 1.0) != plan(8, 20, 1.0)
    for seed in range(5):
        strikes = plan(seed, 20, 1.0)
        assert Counter(strike.kind for strike in strikes) == Counter({kind: wanted(kind, 20) for kind in PER_20_S})
        assert all(FIRST_S <= strike.at_s < 20 for strike in strikes)
        assert [strike.at_s for strike in strikes] == sorted(strike.at_s for strike in strikes)


def test_what_is_to_outlast_the_trust_window_does() -> None:
    strikes = [strike for seed in range(20) for strike in plan(seed, 20, 0.5)]
    assert all(strike.lasts_s > 0.5 for strike in strikes if strike.kind in ("half_open", "pause"))


def test_every_kind_of_fault_can_be_carried_out_and_must_strike() -> None:
    assert all(callable(getattr(Severing, f"_{kind}")) for kind in PER_20_S)
    assert PER_20_S.keys() == LASTS.keys()
    assert all(1 <= enough(kind, seconds) <= wanted(kind, seconds) for kind in PER_20_S for seconds in (1, 5, 20, 60))


ALL_STRUCK = {kind: wanted(kind, 20) for kind in PER_20_S}


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({}, 0, ""),
        ({"local_hits": 0, "local_hits_share": 0.0}, 2, "0% of the local reads were answered at once"),
        ({"faults": ALL_STRUCK | {"half_open": 2}}, 2, "half_open struck 2 times, and not 3"),
        (
            {"faults": {kind: n for kind, n in ALL_STRUCK.items() if kind != "redis_kill"}},
            2,
            "redis_kill struck 0 times",
        ),
        ({"local_hits": 0, "local_hits_share": 0.0, "violations": 1}, 1, "0% of the local reads"),
    ],
)
def test_a_run_without_hits_or_faults_proves_nothing(changed: dict[str, Any], status: int, told: str) -> None:
    result = Result(seed=1, seconds=20, local_hits=900, local_hits_share=0.5, faults=ALL_STRUCK)
    result = msgspec.structs.replace(result, **changed)
    result.proves_nothing = coherence._lacking(result)
    assert result.status == status
    assert told in "".join(result.proves_nothing)
    assert bool(told) == bool(result.proves_nothing)


@pytest.mark.parametrize(
    "changed", [{"violations": 1, "findings": ["old: notes/1"]}, {"proves_nothing": ["no hits"]}, {}]
)
def test_the_last_line_is_the_result(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = msgspec.structs.replace(Result(seed=5, seconds=20), **changed)
    monkeypatch.setattr(coherence, "coherence", lambda seed, seconds, say: result)
    assert coherence.main(["--seed", "5"]) == result.status
    *lines, last = capsys.readouterr().out.splitlines()
    assert msgspec.json.decode(last, type=Result) == result
    assert len(lines) == (2 if result.violations else len(result.proves_nothing))
    assert all("seed 5" in line or "journals" in line for line in lines)


def test_the_board_tells_all_processes_the_highest_version(tmp_path: Path) -> None:
    boards = [Board(tmp_path / "board", f"{name}-0") for name in PROCESSES]
    boards[0].tell(KEYS[0], 7)
    boards[3].tell(KEYS[0], 300)
    boards[3].tell(KEYS[0], 5)
    boards[1].tell(KEYS[-1], 2)
    assert [board.told(KEYS[0]) for board in boards] == [300] * 4
    assert [board.told(KEYS[-1]) for board in boards] == [2] * 4
    assert boards[2].told(KEYS[1]) == 0


class _Client:
    """A client that waits for something before it answers, or for nothing."""

    def __init__(self, waits: bool) -> None:
        self._waits = waits

    async def get(self, key: str) -> str:
        if self._waits:
            await asyncio.sleep(0)
        return key


@pytest.mark.parametrize("waits", [False, True])
async def test_an_answer_at_once_is_one_for_which_the_loop_did_not_turn(waits: bool) -> None:
    answer: Any = await Tasks(_Client(waits)).get(KEYS[0], {})  # type: ignore[arg-type]
    assert answer == (KEYS[0], not waits)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_answer_at_once_is_a_hit(cache: AsyncStateCache, settings: Settings, kind: str) -> None:
    await cache.set(KEYS[0], 1)
    with StateCache(settings=settings) as plain:
        client = Tasks(cache) if kind == "async" else Threads(plain)
        at_once = False
        async with asyncio.timeout(WAIT_S):
            while not at_once:
                before = client.cache.near
                _, at_once = await client.get(KEYS[0], {"read": "local"})
                await pause()
        assert client.cache.near.hits == before.hits + 1
        assert client.cache.near.misses == before.misses > 0
