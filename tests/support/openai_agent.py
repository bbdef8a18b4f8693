"""A process that uses a session, and tells on stdout what it has done: to be run beside others, or killed.

python -m tests.support.openai_agent adds SESSION NAME COUNT     adds that many pairs of items
python -m tests.support.openai_agent turns SESSION TEXT…         has the agent answer each text in a turn; the tool that
                                                                 is asked for `stop` never answers
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import RunConfig, Runner, function_tool

from statecache import AsyncStateCache
from statecache.adapters.openai_agents import StateCacheSession
from tests.support.scripted_model import ScriptedModel, agent

STOP = "stop"


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@function_tool
async def look_up(what: str) -> str:
    """Look something up."""
    _tell(f"looking up {what}")
    if what == STOP:
        await asyncio.Event().wait()
    return what[::-1]


async def adds(session: StateCacheSession, name: str, count: int) -> None:
    """Add pairs of items, one after the other."""
    for number in range(count):
        pair: list[Any] = [{"by": name, "number": number, "part": part} for part in "ab"]
        await session.add_items(pair)
        _tell(str(number))


async def turns(session: StateCacheSession, texts: list[str]) -> None:
    """Have the agent answer texts."""
    scripted = agent(ScriptedModel()).clone(tools=[look_up])
    for text in texts:
        done = await Runner.run(scripted, text, session=session, run_config=RunConfig(tracing_disabled=True))
        _tell(str(done.final_output))


async def _main(what: str, session_id: str, *more: str) -> None:
    async with AsyncStateCache() as cache:
        session = StateCacheSession(session_id, cache)
        await (adds(session, more[0], int(more[1])) if what == "adds" else turns(session, [*more]))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
