"""Which of the states below a thread the saver has written, and which the library keeps of its own beside them.

A checkpoint of a state, or of a group, and a step of a run are states too: `…/checkpoints/LABEL`, `…/steps/NAME`. They
go on when a thread is deleted, for they are what it can be gone back to by. A saver's own are told by their names:

    THREAD/head/NS    THREAD/cp/NS/CHECKPOINT    THREAD/ch/NS/CHANNEL[/PIECE]    THREAD/w/NS/CHECKPOINT/TASK/NUMBER
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statecache import State

_SEGMENTS = {"head": (3,), "cp": (4,), "ch": (4, 5), "w": (6,)}
"""Of how many segments the names of each kind are."""


def own_states(prefix: str, **options: Any) -> Plan[list[State[Any]]]:
    """Return the states with that prefix that savers have written."""
    return own_among((yield from call("list", prefix, **options)))


def own_among(states: Iterable[State[Any]]) -> list[State[Any]]:
    """Return those of the states that savers have written."""
    return [state for state in states if is_own(name_of(state.key))]


def is_own(name: str) -> bool:
    """Return whether a name within its namespace is one that savers give."""
    segments = name.split("/")
    return len(segments) > 1 and len(segments) in _SEGMENTS.get(segments[1], ())


def name_of(key: str) -> str:
    """Return a key's name within its namespace."""
    return key.partition("/")[2]
