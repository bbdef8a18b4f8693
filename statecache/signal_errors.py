"""What a signal handler raises in the middle of a call: it is neither about a value that is read, nor about a server.

Python calls a handler between any two steps of the main thread, with the frame that it interrupts. That frame stands
above the handler's own in the traceback, by which what a handler raised is told from what a user's class raised,
whatever its type. A handler that has no frame, as one written in C, or that lets go of the frame it was given, is not
known by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType

import msgspec


def pass_on(error: Exception) -> None:
    """Raise what a signal handler raised, where an error is that, or msgspec's or pydantic's word on it."""
    for one in _told_in(error):
        if is_of_handler(one):
            raise one


def pass_on_below(error: BaseException) -> None:
    """Raise what a signal handler raised while the calls ran that an error came through, whatever they made of it.

    Libraries that wait for a socket take a TimeoutError, or another OSError, for the socket's, and raise one of their
    own. What was being handled already when these calls began is not looked at.
    """
    below: BaseException | None = error
    while below is not None:
        if is_of_handler(below):
            raise below
        frames, below = {*_frames(below)}, below.__cause__ or below.__context__
        if below is not None and next(_frames(below), None) not in frames:
            return


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        if _was_given(trace.tb_frame, interrupted):
            return True
    return False


def _was_given(frame: FrameType, other: FrameType) -> bool:
    """Return whether a call was given a number and another's frame, as handlers are; no code of users is run."""
    given = [*frame.f_locals.values()]
    return _are_a_handlers(given, other) or any(type(one) is tuple and _are_a_handlers(one, other) for one in given)


def _are_a_handlers(given: Sequence[object], other: FrameType) -> bool:
    return any(one is other for one in given) and any(type(one) is int for one in given)


def _told_in(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those of users' code that a library made it of."""
    yield error
    module, cause = error.__class__.__module__, error.__cause__
    tells = module.startswith("pydantic") or isinstance(error, msgspec.ValidationError)
    if tells and cause is not None and cause is not error:
        yield from _told_in(cause)
    elif module.startswith("pydantic_core") and hasattr(error, "errors"):
        for one in error.errors(include_url=False, include_input=False):
            inner = one.get("ctx", {}).get("error")
            if isinstance(inner, Exception):
                yield inner
