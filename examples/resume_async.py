"""The same as resume.py with the asynchronous client: three runs side by side, whose agent is killed between steps.

python examples/resume_async.py
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from functools import partial

from statecache import AgentRun, AsyncStateCache, Step
from where import somewhere

PLAN = ("search", "read", "write")
TOPICS = ("bees", "tides", "glass")


async def search(step: Step, topic: str) -> list[str]:
    print(f"  tool: searching for {topic}", flush=True)
    return [f"{topic}, volume {number}" for number in (1, 2)]


async def read(step: Step, topic: str) -> str:
    print(f"  tool: reading about {topic}", flush=True)
    return f"what is known about {topic}"


async def write(step: Step, topic: str) -> str:
    print(f"  tool: writing about {topic}", flush=True)
    return f"a page about {topic}"


TOOLS = {"search": search, "read": read, "write": write}


def completed(name: str, run: AgentRun, result: object) -> AgentRun:
    return run.with_step(name, result)


async def research(cache: AsyncStateCache, key: str, topic: str, end: asyncio.Barrier | None) -> AgentRun:
    """Go on with one run until its plan is done, or until all runs have come to the end that was set."""
    runs = cache.namespace("runs", type=AgentRun)
    state = await runs.get(key) or await runs.create(key, AgentRun(goal=f"write about {topic}", plan=PLAN))
    run = state.value
    while name := run.next_step:
        await runs.step(key, name, TOOLS[name], topic, apply=partial(completed, name))
        if end is not None and name == "read":
            await end.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        after = await runs.get(key)
        assert after is not None
        run = after.value
    return run


async def agent(keys: str, dies: str) -> None:
    """Work on all runs at once; one that is to die does so when it has read about all topics."""
    end = asyncio.Barrier(len(TOPICS)) if dies else None
    async with AsyncStateCache() as cache:
        works = zip(keys.split(","), TOPICS, strict=True)
        runs = await asyncio.gather(*(research(cache, key, topic, end) for key, topic in works))
        print(runs[0].resume_summary(), flush=True)
        print(f"{len(runs)} runs are complete.", flush=True)


def main() -> None:
    """Start an agent that will be killed, and then another one."""
    keys = ",".join(f"example-{secrets.token_hex(4)}" for _ in TOPICS)
    with somewhere():
        for who, dies in (("first", "dies"), ("second", "")):
            print(f"The {who} agent starts.", flush=True)
            ended = subprocess.run([sys.executable, __file__, keys, dies], check=False)
            print(f"The {who} agent {'was killed' if ended.returncode == -signal.SIGKILL else 'is done'}.", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(agent(*sys.argv[1:]))
    else:
        main()
