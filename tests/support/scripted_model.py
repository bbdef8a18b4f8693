"""A model that needs no network: it looks up what it is asked for, once, and then says what it was told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class ScriptedModel(Model):
    """Calls the tool for what a user says, and answers with what the tool says; `inputs` are those it was given."""

    def __init__(self) -> None:
        self.inputs: list[list[Any]] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:  # noqa: A002
        """Return the call, or the answer."""
        self.inputs.append([*input] if isinstance(input, list) else [{"role": "user", "content": input}])
        return ModelResponse(output=[_output(self.inputs[-1])], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Yield the same as one event."""
        told = await self.get_response(*args, **more)
        response = Response(
            id="r", created_at=0, model="scripted", object="response", output=told.output, tool_choice="auto",
            tools=[], parallel_tool_calls=False,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def _output(given: list[Any]) -> Any:
    last = given[-1]
    if last.get("role") == "user":
        what = f'{{"what": "{last["content"]}"}}'
        call_id = f"call-{len(given)}"
        return ResponseFunctionToolCall(type="function_call", name="look_up", call_id=call_id, arguments=what)
    text = ResponseOutputText(type="output_text", text=f"It is {last['output']}.", annotations=[])
    return ResponseOutputMessage(
        id=f"m-{len(given)}", type="message", role="assistant", status="completed", content=[text]
    )


@function_tool
async def look_up(what: str) -> str:
    """Look something up."""
    return what[::-1]


def agent(model: Model) -> Agent[None]:
    """Return an agent with that model and one tool."""
    return Agent(name="scripted", model=model, tools=[look_up])


def said(items: list[Any]) -> list[str]:
    """Return what items say, each in a line: who it is from or what it is, and its text."""
    return [f"{item.get('role') or item['type']}: {_text(item)}" for item in items]


def _text(item: Any) -> str:
    content = item.get("content")
    return str(content[0]["text"] if isinstance(content, list) else content or item.get("output") or item["name"])
