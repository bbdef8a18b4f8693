"""A short random history in every run of the tests, and that it can say no. For a long one: `make history-model`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from statecache import NotFound, Settings, State, VersionNotFound
from statecache.keys import KeySpace
from tests.simulation.history_model import run
from tests.simulation.history_model.compared import Compared
from tests.simulation.history_model.drawing import Drawing, TakenAway
from tests.simulation.history_model.plain import PlainHistory, Row, nearest
from tests.simulation.history_model.run import WEIGHTS, Result, Run
from tests.simulation.history_model.servers import HistoryServers
from tests.simulation.history_model.writes import Writes

SEED, STEPS = 7, 60


async def test_a_short_history_is_what_the_plain_one_says(settings: Settings) -> None:
    told: list[str] = []
    result = await run.run(settings, SEED, seconds=60.0, steps=STEPS, say=told.append)
    assert result.violations == 0, "\n".join([*told, *result.findings])
    assert result.steps == STEPS
    assert result.versions > 20
    assert {"get_at", "groups", "diffs", "kept", "values", "ranges", "ancestry", "faults"} <= result.compared.keys()
    assert sum(result.compared.values()) > 500


def _value(row: Row) -> None:
    row.value = {"step": -1}


def _digest(row: Row) -> None:
    row.data += b" "


def _kept(row: Row) -> None:
    row.kept = False


def _parent(row: Row) -> None:
    row.parent = "ff" * 12


def _later(row: Row) -> None:
    row.n += 1


@pytest.mark.parametrize("changed", [_value, _digest, _kept, _parent, _later])
async def test_what_differs_in_one_version_is_found(settings: Settings, changed: Callable[[Row], None]) -> None:
    here = HistoryServers(settings)
    try:
        writes = Writes(Drawing(here, Random(SEED)))
        for step in range(3):
            await writes.write("runs/1", {"step": step})
        compared = Compared(here, Random(SEED))
        await compared.everything()
        assert compared.findings == []
        changed(here.past.chain("runs/1")[1])
        await compared.everything()
        assert any("runs/1" in finding for finding in compared.findings)
    finally:
        await here.close()


async def test_a_version_too_many_or_too_few_is_found(settings: Settings) -> None:
    here = HistoryServers(settings)
    try:
        await Writes(Drawing(here, Random(SEED))).write("runs/1", {"step": 1})
        await here.clients[0].set("runs/1", {"step": 2})
        compared = Compared(here, Random(SEED))
        await compared.everything()
        assert any("versions" in finding for finding in compared.findings)
    finally:
        await here.close()


async def test_every_verb_that_may_be_drawn_can_be_carried_out(settings: Settings) -> None:
    playing = Run(settings, Result(seed=SEED), print)
    try:
        assert {name for name in WEIGHTS if playing.verb(name) is None} == set()
    finally:
        await playing.close()


async def test_a_verb_that_raises_what_the_plain_history_does_not_is_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raises(_: Writes) -> None:
        raise NotFound("runs/1")

    monkeypatch.setattr(Writes, "write", raises)
    result = await run.run(settings, SEED, seconds=60.0, steps=STEPS, say=lambda _: None)
    assert result.status == 1
    assert result.findings


async def test_a_value_that_a_flush_took_before_it_was_read_ends_the_step(settings: Settings) -> None:
    here = HistoryServers(settings)
    try:
        here.set_policy("last", count=None, age=None, history="latest")
        await here.flush()
        drawing = Drawing(here, Random(SEED))
        for step in range(2):
            await Writes(drawing).write("last/1", {"step": step})
        row = here.past.chain("last/1")[0]
        assert await drawing.learnt(row)

        async def branched() -> State[Any]:
            await here.flush()
            return await drawing.client.branch("last/1", "last/b", at=1)

        with pytest.raises(TakenAway):
            await drawing.made_of(row, call=branched())
        assert not row.kept
    finally:
        await here.close()


@pytest.mark.parametrize(
    ("key", "version", "named", "raised"),
    [
        ("runs/1", 1, 2, VersionNotFound),  # its namespace keeps all
        ("last/1", 2, 1, VersionNotFound),  # it is the newest
        ("last/1", 1, None, AssertionError),  # the newest is nearest
    ],
)
async def test_a_value_that_no_flush_takes_is_missed(
    settings: Settings, key: str, version: int, named: int | None, raised: type[Exception]
) -> None:
    here = HistoryServers(settings)
    try:
        here.set_policy("last", count=None, age=None, history="latest")
        drawing = Drawing(here, Random(SEED))
        for step in range(2):
            await Writes(drawing).write(key, {"step": step})
        await here.flush()

        async def refused() -> None:
            raise VersionNotFound(key, wanted=f"version {version}", reason="its value is gone", nearest=named)

        with pytest.raises(raised):
            await drawing.made_of(here.past.chain(key)[version - 1], call=refused())
    finally:
        await here.close()


def _rows(*reasons: str) -> PlainHistory:
    past = PlainHistory(KeySpace("p", 1))
    for version, reason in enumerate(reasons, 1):
        at = datetime.fromtimestamp(version, UTC)
        past.add(
            Row("runs/1", version, "set", version, b"%d" % version, "json", str(version), "", version, 1, at, reason)
        )
    return past


@pytest.mark.parametrize(
    ("reasons", "undo", "redo"),
    [
        (("", "", ""), 2, None),
        (("", "", "", "undo to 2"), 1, 3),
        (("", "", "", "undo to 2", "undo to 1"), None, 2),
        (("", "", "", "undo to 2", "undo to 1", "redo to 2"), 1, 3),
        (("", "", "", "undo to 2", ""), 2, None),
        (("", "", "", "undo to 1", ""), 1, None),
        (("", "", "", "undo to 1"), None, 3),
        (("", "", "", "undo to 2", "undo to 1", "redo to 3"), 2, 3),
    ],
)
def test_the_plain_history_walks_as_an_editor_does(
    reasons: tuple[str, ...], undo: int | None, redo: int | None
) -> None:
    past = _rows(*reasons)
    assert (past.walk("runs/1", "undo"), past.walk("runs/1", "redo")) == (undo, redo)


def test_what_a_policy_may_let_go_is_what_is_replaced_old_and_not_pinned() -> None:
    past = _rows("", "", "", "")
    past.flushed = {0: 4}
    old = datetime.fromtimestamp(3.5, UTC)
    assert [row.version for row in past.replaced("runs", count=2, before=None)] == [1, 2]
    assert [row.version for row in past.replaced("runs", count=None, before=old)] == [1, 2]
    assert [row.version for row in past.replaced("notes", count=1, before=None)] == []
    past.flushed = {0: 3}
    assert [row.version for row in past.replaced("runs", count=2, before=None)] == [1]


def test_what_is_nearest_is_next_on_either_side() -> None:
    assert nearest([1, 2, 5], 3) == {2}
    assert nearest([1, 5], 3) == {1, 5}
    assert nearest([], 3) == set()
