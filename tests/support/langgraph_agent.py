"""An agent without a model that takes thirty steps, each of which it tells on stdout: to be killed and gone on with.

python -m tests.support.langgraph_agent THREAD
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from statecache.adapters.langgraph import StateCacheSaver
from tests.support.langgraph_stories import config

STEPS = 30


class Work(TypedDict):
    done: Annotated[list[str], operator.add]


def _step(state: Work) -> Any:
    number = len(state["done"])
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
    return {"done": [f"{number} {'x' * 500}"]}


def graph(saver: StateCacheSaver) -> Any:
    """Return the graph."""
    builder = StateGraph(Work)
    builder.add_node("step", _step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if len(state["done"]) >= STEPS else "step")
    return builder.compile(checkpointer=saver)


if __name__ == "__main__":
    with StateCacheSaver() as made:
        graph(made).invoke({"done": []}, config(sys.argv[1]) | {"recursion_limit": 100}, durability="sync")
