"""An agent is killed between its steps, and another one takes up its run: no step runs twice.

python examples/resume.py
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from functools import partial
from typing import Any

from statecache import AgentRun, StateCache, Step
from where import somewhere

ORDER = "order 7"


def look_up(step: Step, order: str) -> dict[str, Any]:
    print(f"  tool: looking up {order}", flush=True)
    return {"order": order, "amount": 30}


def refund(step: Step, order: str) -> dict[str, Any]:
    print(f"  tool: refunding {order}, idempotency key {step.idempotency_key}", flush=True)
    return {"refunded": 30}


def tell(step: Step, order: str) -> str:
    print(f"  tool: telling the customer about {order}", flush=True)
    return "told"


TOOLS = {"look up": look_up, "refund": refund, "tell": tell}


def completed(name: str, run: AgentRun, result: object) -> AgentRun:
    return run.with_step(name, result)


def agent(key: str, dies_after: str) -> None:
    """Be a whole agent: go on where the run stands, and remember nothing itself."""
    with StateCache() as cache:
        runs = cache.namespace("runs", type=AgentRun)
        state = runs.get(key) or runs.create(key, AgentRun(goal=f"refund {ORDER}", plan=tuple(TOOLS)))
        run = state.value
        print(run.resume_summary(), flush=True)
        while name := run.next_step:
            runs.step(key, name, TOOLS[name], ORDER, apply=partial(completed, name))
            if name == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            after = runs.get(key)
            assert after is not None
            run = after.value
        print(run.resume_summary(), flush=True)


def main() -> None:
    """Start an agent that will be killed, and then another one."""
    key = f"example-{secrets.token_hex(4)}"
    with somewhere():
        for who, dies_after in (("first", "refund"), ("second", "")):
            print(f"The {who} agent starts.", flush=True)
            ended = subprocess.run([sys.executable, __file__, key, dies_after], check=False)
            print(f"The {who} agent {'was killed' if ended.returncode == -signal.SIGKILL else 'is done'}.", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        agent(*sys.argv[1:])
    else:
        main()
