"""A process that uses a session service of ADK, and tells on stdout what it has done: to be run beside others.

python -m tests.support.adk_agent appends SESSION NAME COUNT     appends that many events of its own, each with what it
                                                                 changes in session, user and app
python -m tests.support.adk_agent runs SESSION TEXT…             has the agent answer each text in a run; the tool that
                                                                 is asked for `stop` never does
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai.types import Content, Part

from statecache import AsyncStateCache
from statecache.adapters.adk import StateCacheSessionService
from tests.support.adk_services import WHOSE, event

STOP = "stop"


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Scripted(BaseLlm):
    """Looks up what it is asked for, and tells what it found, and how often it was asked in this session."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the call, or the answer."""
        parts = [part for content in llm_request.contents for part in content.parts or ()]
        if parts[-1].function_response is None:
            said = Part.from_function_call(name="look_up", args={"what": parts[-1].text})
        else:
            asked = sum(part.function_response is not None for part in parts)
            said = Part(text=f"{asked}: {(parts[-1].function_response.response or {})['result']}")
        yield LlmResponse(content=Content(role="model", parts=[said]))


async def look_up(what: str, tool_context: ToolContext) -> str:
    """Look something up."""
    _tell(f"looking up {what}")
    if what == STOP:
        await asyncio.Event().wait()
    tool_context.state["user:asked"] = tool_context.state.get("user:asked", 0) + 1
    tool_context.state["app:last"] = tool_context.state["last"] = what
    return what[::-1]


def runner(service: StateCacheSessionService) -> Runner:
    """Return what runs the agent."""
    agent = LlmAgent(name="scripted", model=Scripted(), tools=[look_up])
    return Runner(app_name=WHOSE["app_name"], agent=agent, session_service=service, auto_create_session=True)


async def answered(service: StateCacheSessionService, session_id: str, text: str) -> str:
    """Have the agent answer a text."""
    message, told = Content(role="user", parts=[Part(text=text)]), ""
    async for one in runner(service).run_async(user_id=WHOSE["user_id"], session_id=session_id, new_message=message):
        told = said([one])[-1]
    return told


def said(events: list[Event]) -> list[str]:
    """Return what events say, each in a line."""
    return [_text(part) for one in events if one.content for part in one.content.parts or ()]


def _text(part: Part) -> str:
    if part.function_call is not None:
        return f"{part.function_call.name}?"
    return str((part.function_response.response or {})["result"]) if part.function_response else part.text or ""


async def appends(service: StateCacheSessionService, session_id: str, name: str, count: int) -> None:
    """Append events, one after the other, each again where the session has moved on."""
    for number in range(count):
        changes: dict[str, Any] = dict.fromkeys((f"app:{name}", f"user:{name}", name), number)
        while True:
            session = await service.get_session(**WHOSE, session_id=session_id)
            assert session is not None
            try:
                await service.append_event(session, event(f"{name} {number}", changes=dict(changes)))
                break
            except StaleSessionError:
                continue
        _tell(str(number))


async def _main(what: str, session_id: str, *more: str) -> None:
    async with AsyncStateCache() as cache:
        service = StateCacheSessionService(cache)
        if what == "appends":
            await appends(service, session_id, more[0], int(more[1]))
        else:
            for text in more:
                _tell(await answered(service, session_id, text))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
