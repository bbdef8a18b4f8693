"""A graph whose servers and worker are killed under it ends as one does that nobody disturbs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from statecache import Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.support.killer import Killer
from tests.support.langgraph_stories import config

ROUNDS, TASKS = 4, 3
_MADE_UP = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.+]+")
Strike = Callable[[int], None]


class Work(TypedDict):
    done: Annotated[list[str], operator.add]
    draft: str
    round: int


def graph(saver: Any, strike: Strike) -> Any:
    """Return a graph that writes a draft of 12 KB in each round, and has three tasks look at it at once."""

    def write(state: Work) -> Any:
        strike(state["round"])
        return {"done": [f"wrote {state['round']}"], "draft": f"{state['round']} " * 6000, "round": state["round"] + 1}

    def look(state: Any) -> Any:
        return {"done": [f"looked at {state['round']} as {state['who']}: {state['draft'][:10]}"]}

    def out(state: Work) -> Any:
        told = {"round": state["round"], "draft": state["draft"]}
        return [Send("look", told | {"who": who}) for who in range(TASKS)]

    builder = StateGraph(Work)
    builder.add_node("write", write)
    builder.add_node("look", look)
    builder.add_edge(START, "write")
    builder.add_conditional_edges("write", out, ["look"])
    builder.add_conditional_edges("look", lambda state: "write" if state["round"] < ROUNDS else END)
    return builder.compile(checkpointer=saver)


def shown(saver: Any, thread: str, strike: Strike, durability: Any) -> str:
    """Run the graph, and return its end and every state on the way there."""
    agent = graph(saver, strike)
    end = agent.invoke({"done": [], "draft": "", "round": 0}, config(thread), durability=durability)
    return _plain([end, *agent.get_state_history(config(thread))])


def _plain(found: list[Any]) -> str:
    return _MADE_UP.sub("…", repr(found))


@pytest.fixture(scope="module")
def mortal() -> Iterator[Servers]:
    """Servers that may be killed, with a worker."""
    with servers(workers=1, fsync=False, settings={"shards": "4"}) as started:
        yield started


@pytest.mark.parametrize("names", [("redis",), ("worker", "postgres", "redis")], ids="-".join)
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_graph_under_kills_ends_as_one_that_nobody_disturbs(
    mortal: Servers, names: tuple[str, ...], durability: str
) -> None:
    thread, killer = f"{'-'.join(names)}/{durability}", Killer(mortal, *names)
    urls: dict[str, Any] = {"redis_url": mortal.redis_url, "postgres_url": mortal.postgres_url, "shards": 4}
    settings = Settings(**urls, timeout_s=20.0)
    wanted = shown(InMemorySaver(), thread, lambda _: None, durability)
    with StateCacheSaver(settings) as saver:
        assert shown(saver, thread, killer, durability) == wanted
    killer.wait()
    assert len(killer.struck) == ROUNDS
    with StateCache(settings=settings) as cache:  # another process, once Postgres holds all of it
        last = cache.set(f"langgraph/{saver.group_of(thread).partition('/')[2]}/end", 1, durability="postgres")
        assert last.version == 1
        agent = graph(StateCacheSaver(cache), killer)
        end = agent.get_state(config(thread)).values
        assert _plain([end, *agent.get_state_history(config(thread))]) == wanted
    with psycopg.connect(mortal.postgres_url) as psql:
        assert psql.execute("SELECT count(*) FROM statecache.conflict").fetchone() == (0,)
