"""Flows that the library's verbs have made of others, run by a Python that has CrewAI: see `test_crewai`.

Branches and merges begin from what Postgres holds, so a worker runs.
"""

from __future__ import annotations

from tests.crewai.flows import asking, flow_of
from tests.crewai.persistences import Both


def _branched(both: Both, source: str, target: str) -> None:
    ours, cache = both.next(), both.clients[0]
    for name in (ours.group_of(source), f"{ours.group_of(source)}/pending"):
        if (state := cache.get(name, read="primary")) is not None:
            cache.wait_durable(state)
    cache.branch(ours.group_of(source), ours.group_of(target), group=True)


def _done(both: Both, flow_id: str) -> tuple[str, list[str]]:
    """Return of whom a flow says that it is, and what was done in it."""
    state = both.next().load_state(flow_id)
    assert state is not None
    return state["id"], state["done"]


def test_a_branch_is_gone_on_with_as_a_flow_of_its_own(both: Both, flow_id: str) -> None:
    of, cache, steps = both.next().group_of, both.clients[0], ["first", "second"]
    copy, second = f"{flow_id}-b", f"{flow_id}-c"
    flow_of(both.next())().kickoff(inputs={"id": flow_id})
    _branched(both, flow_id, copy)
    _branched(both, copy, second)
    for name, times in ((copy, 2), (second, 2), (copy, 3)):
        flow_of(both.next())().kickoff(inputs={"id": name})
        assert _done(both, name) == (name, steps * times)
    assert _done(both, flow_id) == (flow_id, steps)
    assert [one.reason for one in cache.history(of(flow_id))][-2:] == steps
    cache.rollback(of(copy), 1)
    assert _done(both, copy) == (copy, steps)
    cache.update(of(copy), lambda value: value | {"done": ["changed"]})
    assert _done(both, copy) == (copy, ["changed"])
    merged = cache.merge(of(second), of(flow_id))
    assert merged.value["id"] == second, "it is what the branch has come to"
    assert _done(both, flow_id) == (flow_id, steps * 2)


def test_a_branch_of_a_paused_flow_is_resumed_by_itself(both: Both, flow_id: str) -> None:
    copy = f"{flow_id}-b"
    asking(both.next())(persistence=both.next()).kickoff(inputs={"id": flow_id})
    _branched(both, flow_id, copy)
    found = both.next().load_pending_feedback(copy)
    assert found is not None
    assert (found[0]["id"], found[1].flow_id) == (copy, copy)
    asking(both.next()).from_pending(copy, both.next()).resume("from the branch")
    assert both.next().load_pending_feedback(copy) is None
    waits, states = both.next().load_pending_feedback(flow_id), [both.next().load_state(one) for one in (copy, flow_id)]
    assert waits is not None
    assert waits[1].flow_id == flow_id
    assert [state and (state["id"], state["said"]) for state in states] == [(copy, "from the branch"), (flow_id, "")]
