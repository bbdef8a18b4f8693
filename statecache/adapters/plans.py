"""What a saver or a store does, written once: generators that yield the verbs to be called, and get what these return.

`run` calls the verbs of a `Namespace`, `arun` those of an `AsyncNamespace`. What a verb raises is raised where the plan
called it, so plans catch conflicts as any code would. A plan that lists yields what it has found as `Found`, one that
has plans carried out that have nothing to do with one another yields them `Together`, and one that writes over states
only while others stay as they are yields them `Compared`. The `Level` at which writes count as written is the view's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from statecache import DurabilityNotMet, OutcomeUnknown, Set, StateCacheError

if TYPE_CHECKING:
    from statecache import AsyncNamespace, AsyncTransaction, Delete, Namespace, State, Transaction

T = TypeVar("T")


class Call(NamedTuple):
    """A verb to be called; of one that yields what it finds, the plan gets all at once."""

    verb: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Found(NamedTuple):
    """What a listing gives, one after the other."""

    one: Any


class Together(NamedTuple):
    """Plans to be carried out in any order; where calls are awaited, several at once."""

    plans: Sequence[Plan[None]]


class Compared(NamedTuple):
    """States to be read, and what is written of them, Sets and Deletes: all of it, or none where one has changed.

    `decide` is told the states by their names, None for those that are not there. The plan gets what was written.
    """

    names: Sequence[str]
    decide: Callable[[Mapping[str, State[Any] | None]], Sequence[Set | Delete]]
    options: dict[str, Any]


class Level:
    """The durability level at which a write of the view counts as written."""


Asked = Call | Compared | Together | Level
Plan = Generator[Asked, Any, T]
Listing = Generator[Asked | Found, Any, None]
DOCUMENT = dict[str, Any]
"""The type that a plan lists with what adapters keep, where the library keeps records of its own between: the named
checkpoints `KEY/checkpoints/LABEL` and the steps `KEY/steps/NAME`. A listing with a type passes over these, wherever
they are, so pages and limits count what adapters keep alone."""
_YIELDING = ("history", "list")
_TELLING = ("commit", "create", "set", "update")
"""Verbs that write and take a reason."""
_WRITING = (*_TELLING, "delete", "delete_many")
_PROVING = "_prove"
_TOGETHER_MAX = 4
"""How many of the plans that have nothing to do with one another are carried out at once."""


class Declined(Exception):
    """What a function given to `update` raises to have nothing written, with the reason for it."""


def call(verb: str, *arguments: Any, **options: Any) -> Plan[Any]:
    """Call a verb, and return what it returns."""
    return (yield Call(verb, arguments, options))


def lacks_durability(error: StateCacheError) -> bool:
    """Return whether an error says of a change that it is applied, and not known to be as durable as it has to be."""
    if isinstance(error, OutcomeUnknown):
        return OutcomeUnknown.awaited in error.reason
    return isinstance(error, DurabilityNotMet)


def commits(parts: Iterable[Sequence[Any]]) -> Plan[None]:
    """Carry out commits, one after the other."""
    for part in parts:
        yield from call("commit", part)


def proven(*names: str, below: Sequence[str] = ()) -> Plan[None]:
    """Wait until what was found is as durable as a write has to be: what names, and prefixes, are, be it there or gone.

    It is for who finds that what he is asked for was done before: that alone does not say how durable it is. Raises
    what a write raises that is applied, and not known to be as durable as it has to be.
    """
    yield from call(_PROVING, *names, below=below)


def together(plans: Sequence[Plan[None]]) -> Plan[list[StateCacheError | None]]:
    """Have all plans carried out, and return for each what it raised, or None."""
    return (yield Together(plans)) if plans else []


def level() -> Plan[str]:
    """Return the durability level at which a write counts as written."""
    return (yield Level())  # type: ignore[no-any-return]


def run(view: Namespace[Any], plan: Plan[T], begins: Callable[[Asked], None] = lambda _: None) -> T:
    """Carry out a plan with the verbs of a synchronous view; `begins` is told each, and may raise to end the plan."""
    try:
        asked = next(plan)
        while True:
            begins(asked)
            try:
                answer = _answer(view, asked, begins)
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
                answer = await _aanswer(view, asked)
            except (StateCacheError, Declined) as error:
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def through(plan: Plan[T], carry_out: Callable[[Asked], Plan[Any]]) -> Plan[T]:
    """Carry out a plan, each step of which another plan carries out.

    The plan is told what that raises as StateCacheError or Declined. Anything else leaves it unfinished, and goes to
    the caller.
    """
    try:
        asked = next(plan)
        while True:
            try:
                answer = yield from carry_out(asked)
            except (StateCacheError, Declined) as error:
                asked = plan.throw(error)
            else:
                asked = plan.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def to_its_end(plan: Plan[T]) -> Plan[T]:
    """Carry out a plan as a whole, though what it writes is applied, and not known to be as durable as it has to be.

    What it writes after that does not wait to be durable, and then that error is raised. The plan gets None for what
    the verb returns that raised it.
    """
    lacking = list[StateCacheError]()

    def carried_out(asked: Asked) -> Plan[Any]:
        if lacking and isinstance(asked, Call):
            if asked.verb == _PROVING:
                return None
            if asked.verb in _WRITING:
                asked = asked._replace(options=asked.options | {"durability": "memory"})
        try:
            return (yield asked)
        except (DurabilityNotMet, OutcomeUnknown) as error:
            if not lacks_durability(error):
                raise
            lacking.append(error)
            return None

    result = yield from through(plan, carried_out)
    if lacking:
        raise lacking[0]
    return result


def for_reason(plan: Plan[T], reason: str) -> Plan[T]:
    """Carry out a plan whose changes say that reason, where they say none."""

    def carried_out(asked: Asked) -> Plan[Any]:
        if (isinstance(asked, Call) and asked.verb in _TELLING) or isinstance(asked, Compared):
            asked = asked._replace(options={"reason": reason} | asked.options)
        elif isinstance(asked, Together):
            asked = Together([for_reason(one, reason) for one in asked.plans])
        return (yield asked)

    return through(plan, carried_out)


def _answer(view: Namespace[Any], asked: Asked, begins: Callable[[Asked], None]) -> Any:
    """Return what the verb returns that is called, what plans have raised, or the level."""
    if isinstance(asked, Level):
        return view._view.durability_of(None)
    if isinstance(asked, Together):
        return [_raised(view, one, begins) for one in asked.plans]
    if isinstance(asked, Compared):
        with view.transaction(*asked.names, **asked.options) as opened:
            _write(opened, asked.decide({name: opened.get(name) for name in asked.names}))
        return opened.states
    result = getattr(view, asked.verb)(*asked.arguments, **asked.options)
    return [*result] if asked.verb in _YIELDING else result


async def _aanswer(view: AsyncNamespace[Any], asked: Asked) -> Any:
    """Do what `_answer` does."""
    if isinstance(asked, Level):
        return view._view.durability_of(None)
    if isinstance(asked, Together):
        room = asyncio.Semaphore(_TOGETHER_MAX)
        return await asyncio.gather(*(_araised(view, one, room) for one in asked.plans))
    if isinstance(asked, Compared):
        async with view.transaction(*asked.names, **asked.options) as transaction:
            _write(transaction, asked.decide({name: await transaction.get(name) for name in asked.names}))
        return transaction.states
    result = getattr(view, asked.verb)(*asked.arguments, **asked.options)
    return [one async for one in result] if asked.verb in _YIELDING else await result


def _write(opened: AsyncTransaction[Any] | Transaction[Any], writes: Sequence[Set | Delete]) -> None:
    """Note what is written at the end of a transaction."""
    for one in writes:
        if isinstance(one, Set):
            opened.set(one.name, one.value, ttl=one.ttl)
        else:
            opened.delete(one.name)


def _raised(view: Namespace[Any], plan: Plan[None], begins: Callable[[Asked], None]) -> StateCacheError | None:
    try:
        return run(view, plan, begins)
    except StateCacheError as error:
        return error


async def _araised(view: AsyncNamespace[Any], plan: Plan[None], room: asyncio.Semaphore) -> StateCacheError | None:
    try:
        async with room:
            return await arun(view, plan)
    except StateCacheError as error:
        return error


def until_found(listing: Listing) -> Plan[Any]:
    """Go on with a listing up to the next that it finds, and return that, or None at its end."""
    answer: Any = None
    failed: StateCacheError | None = None
    while True:
        try:
            step = listing.send(answer) if failed is None else listing.throw(failed)
        except StopIteration:
            return None
        if isinstance(step, Found):
            return step.one
        answer, failed = None, None
        try:
            answer = yield step
        except StateCacheError as error:
            failed = error
