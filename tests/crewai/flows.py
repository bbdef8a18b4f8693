"""Flows that are persisted, and that ask somebody, for the contract of persistence."""

from __future__ import annotations

import os
import signal
from typing import Any

from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import persist
from pydantic import BaseModel


class Told(BaseModel):
    """What the flows here come to."""

    id: str = ""
    done: list[str] = []
    said: str = ""


class Asks:
    """What asks somebody for feedback, who answers another day."""

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
        """Have the flow paused."""
        raise HumanFeedbackPending(context=context)


def flow_of(persistence: Any) -> type[Any]:
    """Return a flow of two steps that is persisted after each."""

    @persist(persistence)
    class Steps(Flow[Told]):
        _skip_auto_memory = True

        @start()
        def first(self) -> None:
            self.state.done.append("first")

        @listen(first)
        def second(self) -> None:
            self.state.done.append("second")
            if self.state.said == "die":
                os.kill(os.getpid(), signal.SIGKILL)

    return Steps


def asking(persistence: Any) -> type[Any]:
    """Return a flow that asks for feedback and goes on with it."""

    @persist(persistence)
    class Review(Flow[Told]):
        _skip_auto_memory = True

        @start()
        @human_feedback(message="Is it right?", provider=Asks())
        def draft(self) -> str:
            self.state.done.append("draft")
            return "a draft"

        @listen(draft)
        def publish(self, result: Any) -> None:
            self.state.said = result.feedback

    return Review


def context(flow_id: str, **more: Any) -> PendingFeedbackContext:
    """Return what a paused flow waits for."""
    told: dict[str, Any] = {"method_name": "draft", "emit": ["yes", "no"]}
    return PendingFeedbackContext(
        flow_id=flow_id, flow_class="Review", method_output={"title": "a draft"}, message="Is it right?", **told | more
    )


# What is saved and loaded.
