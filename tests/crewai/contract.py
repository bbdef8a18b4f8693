"""The contract of persistence for flows, run by a Python that has CrewAI: see `test_crewai` for how and on what.

The environment says on which servers, and in `CONFIGURATION` what is done to them between a save and a load.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from crewai.flow.async_feedback.types import HumanFeedbackPending
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence

from statecache import CodecError, LimitExceeded, Settings, UsageError
from statecache.adapters.crewai import StateCacheFlowPersistence
from tests.crewai.flows import Told, asking, context, flow_of
from tests.crewai.persistences import CONFIGURATION, Both


def test_what_was_saved_last_is_loaded(both: Both, flow_id: str) -> None:
    assert both.next().load_state(flow_id) is None
    for number in range(3):
        both.next().save_state(flow_id, "step", {"id": flow_id, "number": number})
        assert both.next().load_state(flow_id) == {"id": flow_id, "number": number}
    both.next().save_state(flow_id, "step", Told(id=flow_id, done=["a"]))
    assert both.next().load_state(flow_id) == {"id": flow_id, "done": ["a"], "said": ""}
    assert both.next().load_state(flow_id + "0") is None


SAID = {"erased": "method erased", "expired": "method expired", "erased: x": "method erased: x", "pay": "pay"}
SAID |= {"undo to 6": "method undo to 6", "branch of runs/42@7": "method branch of runs/42@7", "undo": "undo"}
SAID |= {"a\0b": "a?b", "half \ud83d": "half ?", "undo\0 to 6": "undo? to 6"}
SAID |= {"x" * 1024: "x" * 1024, "é" * 513: "é" * 510 + "…", "expired" * 200: ("expired" * 200)[:1021] + "…"}
"""Names of methods, and the reasons that their saves have."""


@pytest.mark.parametrize(("method", "reason"), SAID.items(), ids=[ascii(name)[:20] for name in SAID])
def test_whatever_a_method_is_called_its_saves_are_kept(both: Both, flow_id: str, method: str, reason: str) -> None:
    ours = both.next()
    ours.save_state(flow_id, method, {"id": flow_id, "number": 1})
    ours.save_pending_feedback(flow_id, context(flow_id, method_name=method), {"id": flow_id, "number": 2})
    assert both.next().load_state(flow_id) == {"id": flow_id, "number": 2}
    waits = both.next().load_pending_feedback(flow_id)
    assert waits is not None
    assert waits[1].method_name == method
    assert [one.reason for one in both.clients[0].history(ours.group_of(flow_id))] == [reason] * 2


def test_a_method_may_be_called_by_a_number_as_with_crewais_own(both: Both, flow_id: str, tmp_path: Path) -> None:
    for persistence in (SQLiteFlowPersistence(str(tmp_path / "flows.db")), both.next()):
        persistence.save_state(flow_id, 7, {"id": flow_id})  # type: ignore[arg-type]
        assert persistence.load_state(flow_id) == {"id": flow_id}
    assert [one.reason for one in both.clients[0].history(both.next().group_of(flow_id))] == ["7"]


STRANGE: list[Any] = [
    {},
    {"when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "day": date(2026, 1, 2), "who": UUID(int=7)},
    {"set": {1}, "tuple": (1, (2, "x")), "bytes": b"\0x", "model": Told(id="7")},
    {
        "deep": {"of": [Told(done=["x"]), {"at": datetime(2026, 1, 2, tzinfo=UTC)}]},
        3: "a number",
        None: "none",
        True: "yes",
    },
    {"nan": float("inf"), "text": "a\0b", "half": "\ud83d", "large": 2**80},
    {"$json": "looks like it"},
    {"id": "x", "said": "a long text " * 50_000},
]


@pytest.mark.parametrize("state", STRANGE, ids=str)
def test_what_json_has_no_form_for_comes_back_as_from_crewais_own(
    both: Both, flow_id: str, state: Any, tmp_path: Any
) -> None:
    own = SQLiteFlowPersistence(str(tmp_path / "flows.db"))
    for persistence in (own, both.next()):
        persistence.save_state(flow_id, "step", state)
    assert repr(both.next().load_state(flow_id)) == repr(own.load_state(flow_id))


@pytest.mark.parametrize("name", ["a/b", "", "-", "%2F", "a:b c", "é" * 300, "x" * 5000, "💥"])
def test_any_id_names_a_flow_of_its_own(both: Both, name: str) -> None:
    both.next().save_state(name, "step", {"id": name})
    both.next().save_state(name + "/pending", "step", {"id": "another"})
    both.next().save_state(name + " ", "step", {"id": "a third"})
    assert both.next().load_state(name) == {"id": name}
    assert both.next().load_pending_feedback(name) is None


def test_what_cannot_be_kept_is_refused_before_anything_is_written(both: Both, flow_id: str) -> None:
    cyclic: dict[str, Any] = {}
    cyclic["itself"] = cyclic
    refused: list[tuple[Any, Any, type[Exception]]] = [
        (flow_id, [1], ValueError), (flow_id, "text", ValueError), (flow_id, cyclic, CodecError),
        (flow_id, {(1, 2): 3}, CodecError), ("a\0b", {}, UsageError), (flow_id, {"x": "x" * (9 << 20)}, LimitExceeded),
    ]  # fmt: skip
    for name, state, error in refused:
        with pytest.raises(error):
            both.next().save_state(name, "step", state)
    assert both.next().load_state(flow_id) is None
    with pytest.raises(UsageError, match="not on a dict"):
        StateCacheFlowPersistence({})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [dict, Told])
def test_an_id_may_be_a_number_where_crewais_own_takes_one(
    both: Both, flow_id: str, model: type[Any], tmp_path: Path
) -> None:
    number = int(flow_id.rpartition("-")[2]) + 10**9
    for persistence in (SQLiteFlowPersistence(str(tmp_path / "flows.db")), both.next()):
        persistence.save_state(number, "step", {"id": number} if model is dict else Told(id=str(number)))
        loaded = persistence.load_state(number)
        assert loaded == persistence.load_state(str(number))
        assert loaded is not None
        assert loaded["id"] == (number if model is dict else str(number))
    with pytest.raises(UsageError, match="a flow's id is None"):
        both.next().save_state(None, "step", {})  # type: ignore[arg-type]


# What a paused flow waits for.


def test_pending_feedback_is_saved_with_the_state_replaced_and_cleared(both: Both, flow_id: str) -> None:
    assert both.next().load_pending_feedback(flow_id) is None
    both.next().clear_pending_feedback(flow_id)
    for number in (1, 2):
        asked = context(
            flow_id, metadata={"number": number, "at": datetime(2026, 1, 2, tzinfo=UTC)}, trace_context=(1, 2)
        )
        both.next().save_pending_feedback(flow_id, asked, Told(id=flow_id, said=str(number)))
        found = both.next().load_pending_feedback(flow_id)
        assert found is not None
        assert found[0] == both.next().load_state(flow_id) == {"id": flow_id, "done": [], "said": str(number)}
        assert found[1].to_dict() == asked.to_dict()
    both.next().save_state(flow_id, "step", Told(id=flow_id, said="later"))
    found = both.next().load_pending_feedback(flow_id)
    assert found is not None
    assert found[0]["said"] == "2", "it is the state in which the flow was paused"
    for _ in range(2):
        both.next().clear_pending_feedback(flow_id)
        assert both.next().load_pending_feedback(flow_id) is None
    state = both.next().load_state(flow_id)
    assert state is not None
    assert state["said"] == "later"
    pending = [one.op for one in both.clients[0].history(both.next().group_of(flow_id) + "/pending")]
    assert pending == ["set", "set", "delete"], "clearing what is clear writes nothing"


def test_a_paused_flow_is_resumed_by_another_process(both: Both, flow_id: str) -> None:
    review = asking(both.next())
    told = review(persistence=both.next()).kickoff(inputs={"id": flow_id})
    assert isinstance(told, HumanFeedbackPending)
    flow = asking(both.next()).from_pending(flow_id, both.next())
    flow.resume("it is")
    assert flow.state.said == "it is"
    assert both.next().load_pending_feedback(flow_id) is None
    state = both.next().load_state(flow_id)
    assert state is not None
    assert (state["done"], state["said"]) == (["draft"], "it is")


# Flows.


def test_a_flow_goes_on_from_what_it_had_come_to_and_each_method_is_in_its_history(both: Both, flow_id: str) -> None:
    for _ in range(2):
        flow = flow_of(both.next())()
        flow.kickoff(inputs={"id": flow_id})
    assert flow.state.done == ["first", "second"] * 2
    cache, group = both.clients[0], both.next().group_of(flow_id)
    reasons = [one.reason for one in cache.history(group)]
    assert [one for one in reasons if one in ("first", "second")] == ["first", "second"] * 2
    cache.rollback(group, 1)
    state = both.next().load_state(flow_id)
    assert state is not None
    assert state["done"] == ["first"]
    if CONFIGURATION != "paused":  # no worker takes the version to Postgres that a branch begins from
        cache.branch(group, both.next().group_of(f"{flow_id}-b"))
        assert both.next().load_state(f"{flow_id}-b") == state | {"id": f"{flow_id}-b"}


def test_what_was_saved_under_another_id_stays_as_it_is(both: Both, flow_id: str) -> None:
    ours = both.next()
    for number in range(2):
        ours.save_pending_feedback(flow_id, context("others"), {"id": "another", "number": number})
    for number in (1, 0):
        waits = both.next().load_pending_feedback(flow_id)
        assert waits is not None
        assert (waits[0], waits[1].flow_id) == ({"id": "another", "number": 1}, "others")
        assert both.next().load_state(flow_id) == {"id": "another", "number": number}
        if number:
            both.clients[0].rollback(ours.group_of(flow_id), 1)


def test_threads_and_event_loops_may_use_one_persistence(both: Both, flow_id: str) -> None:
    persistence = both.next()

    def saves(number: int) -> None:
        name = f"{flow_id}-{number % 4}"
        persistence.save_state(name, "step", {"id": name, "number": number})

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(saves, range(40))]

    async def within() -> Any:
        saves(40)
        return persistence.load_state(f"{flow_id}-0")

    assert asyncio.run(within()) == {"id": f"{flow_id}-0", "number": 40}
    for number in range(4):
        history = both.clients[0].history(persistence.group_of(f"{flow_id}-{number}"), values=True)
        saved = sorted(one.value["number"] for one in history)
        assert saved == [*range(number, 41 if number == 0 else 40, 4)]


def test_copies_share_a_client_and_a_persistence_is_made_again_from_its_fields(both: Both, flow_id: str) -> None:
    persistence = both.next()
    for one in (copy.copy(persistence), copy.deepcopy(persistence)):
        one.save_state(flow_id, "step", {"id": flow_id})
    again = StateCacheFlowPersistence.model_validate(persistence.model_dump(mode="json"))
    assert (again.namespace, again.persistence_type) == ("crewai", "StateCacheFlowPersistence")
    again.init_db()
    assert again.load_state(flow_id) == {"id": flow_id}
    again.close()
    with pytest.raises(UsageError, match="closed"):
        again.load_state(flow_id)
    with (
        StateCacheFlowPersistence.from_url(prefix="others", postgres_schema="others") as other,
        pytest.raises(UsageError, match="other servers than the environment names"),
    ):
        StateCacheFlowPersistence.model_validate(other.model_dump(mode="json"))
    assert StateCacheFlowPersistence.model_validate({"persistence_type": "StateCacheFlowPersistence"}).servers
    assert "***" not in str(persistence.model_dump())
    assert "redis" not in str(persistence.model_dump())


def test_a_namespace_and_settings_may_be_given(both: Both, flow_id: str) -> None:
    settings = Settings()
    with StateCacheFlowPersistence(settings, namespace="others") as others:
        others.save_state(flow_id, "step", {"id": "other"})
        assert others.group_of(flow_id) == f"others/{flow_id}"
    with StateCacheFlowPersistence.from_url(
        url=settings.redis_url, postgres_url=settings.postgres_url, namespace="others", prefix=settings.prefix
    ) as again:
        assert again.load_state(flow_id) == {"id": "other"}
    assert both.next().load_state(flow_id) is None
    with pytest.raises(UsageError, match="more than one segment"):
        StateCacheFlowPersistence(namespace="a/b")


def saves(flow_id: str, times: int, *, alone: bool) -> None:
    """Save a number after the other, and load each, which is another one's where others save too; say each number."""
    with StateCacheFlowPersistence(Settings(timeout_s=30.0)) as persistence:
        for number in range(times):
            persistence.save_state(flow_id, "step", {"number": number})
            state = persistence.load_state(flow_id)
            assert state is not None
            assert state == {"number": number} or not alone
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            Event().wait(0.02)


if __name__ == "__main__":
    saves(sys.argv[1], int(sys.argv[2]), alone=len(sys.argv) == 3)
