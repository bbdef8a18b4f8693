"""A pool of agents shares one budget: whatever they do at once, it is never overspent.

python examples/budget.py
"""

from __future__ import annotations

import secrets
import subprocess
import sys

import msgspec

from statecache import StateCache
from where import somewhere

AGENTS = 4
TOKENS = 100
PRICE = 7


class Budget(msgspec.Struct, frozen=True):
    left: int
    spent_by: dict[str, int] = {}

    def spend(self, name: str) -> Budget:
        """Return the budget after a purchase, or raise Overspent, which aborts the update."""
        if self.left < PRICE:
            raise Overspent(name)
        spent = self.spent_by | {name: self.spent_by.get(name, 0) + PRICE}
        return Budget(self.left - PRICE, spent)


class Overspent(Exception):
    """There is not enough left."""


def agent(key: str, name: str) -> None:
    """Buy for as long as there is money."""
    with StateCache() as cache:
        budgets = cache.namespace("budgets", type=Budget)
        try:
            while True:
                budgets.update(key, lambda budget: budget.spend(name))
        except Overspent:
            print(f"{name}: the budget is used up\n", end="", flush=True)  # one write: others print beside it


def main() -> None:
    """Let agents loose on one budget, then look at what is left."""
    key = f"example-{secrets.token_hex(4)}"
    with somewhere(), StateCache() as cache:
        budgets = cache.namespace("budgets", type=Budget)
        budgets.create(key, Budget(TOKENS))
        names = [f"agent {number}" for number in range(1, AGENTS + 1)]
        started = [subprocess.Popen([sys.executable, __file__, key, name]) for name in names]
        statuses = [agent.wait() for agent in started]
        state = budgets.get(key, read="primary")
        assert state is not None
        spent = sum(state.value.spent_by.values())
        print(f"{AGENTS} agents, statuses {statuses}: spent {spent}, left {state.value.left}, {state.version} commits")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        agent(*sys.argv[1:])
    else:
        main()
