"""What a saver does, written once: generators that yield the verbs to be called, and get what these return.

`run` calls the verbs of a `Namespace`, `arun` those of an `AsyncNamespace`. What a verb raises is raised where the plan
called it, so plans catch conflicts as any code would. A plan that lists yields what it has found as `Found`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from statecache import StateCacheError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from statecache import AsyncNamespace, Namespace

T = TypeVar("T")


class Call(NamedTuple):
    """A verb to be called; of `list`, the plan gets all states at once."""

    verb: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Found(NamedTuple):
    """A checkpoint that a listing gives."""

    checkpoint: CheckpointTuple


Plan = Generator[Call, Any, T]
Listing = Generator[Call | Found, Any, None]


class Declined(Exception):
    """What a function given to `update` raises to have nothing written, with the reason for it."""


def call(verb: str, *arguments: Any, **options: Any) -> Plan[Any]:
    """Call a verb, and return what it returns."""
    return (yield Call(verb, arguments, options))


def run(view: Namespace[Any], plan: Plan[T]) -> T:
    """Carry out a plan with the verbs of a synchronous view."""
    try:
        asked = next(plan)
        while True:
            try:
                result = getattr(view, asked.verb)(*asked.arguments, **asked.options)
                answer = [*result] if asked.verb == "list" else result
            except (StateCacheError, Declined) as error:
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(view: AsyncNamespace[Any], plan: Plan[T]) -> T:
    """Carry out a plan with the verbs of an asynchronous view."""
    try:
        asked = next(plan)
        while True:
            try:
                result = getattr(view, asked.verb)(*asked.arguments, **asked.options)
                answer = [state async for state in result] if asked.verb == "list" else await result
            except (StateCacheError, Declined) as error:
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def until_found(listing: Listing) -> Plan[CheckpointTuple | None]:
    """Go on with a listing up to the next checkpoint that it finds, and return that, or None at its end."""
    answer: Any = None
    failed: StateCacheError | None = None
    while True:
        try:
            step = listing.send(answer) if failed is None else listing.throw(failed)
        except StopIteration:
            return None
        if isinstance(step, Found):
            return step.checkpoint
        answer, failed = None, None
        try:
            answer = yield step
        except StateCacheError as error:
            failed = error
