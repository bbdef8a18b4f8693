"""The verbs about steps that run once, and about those of which nobody knows whether they ran."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from statecache.clock import monotonic, wall
from statecache.codec import codec_for
from statecache.core.step.call import StepCall, Terms
from statecache.core.step.records import Held, held_step, record_write
from statecache.core.view import VerbGroup, checked_reason, checked_text
from statecache.errors import NotFound, UsageError
from statecache.keys import checked_key
from statecache.model import Durability, State
from statecache.rules import steps
from statecache.rules.steps import Retry, Step

if TYPE_CHECKING:
    from statecache.core.step.claims import Claim

D = TypeVar("D")
V = TypeVar("V")


class AsyncSteps(VerbGroup[D], Generic[D]):
    """The verbs about steps."""

    @overload
    async def step(
        self, name: str, step: str, function: Callable[..., Any], /, *args: Any, type: type[V],
        apply: Callable[[D, V], Awaitable[D] | D] | None = None, default: D | Callable[[], D] | None = ...,
        state_type: None = None, idempotent: bool = False, check: Callable[[Step], Any] | None = None,
        retry: int | Retry = 0, durability: Durability = "postgres", actor: str = "", reason: str = "",
        timeout: float | None = None,
    ) -> V: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, step: str, function: Callable[..., Any], /, *args: Any, type: object = None,
        apply: Callable[[D, Any], Awaitable[D] | D] | None = None, default: D | Callable[[], D] | None = ...,
        state_type: None = None, idempotent: bool = False, check: Callable[[Step], Any] | None = None,
        retry: int | Retry = 0, durability: Durability = "postgres", actor: str = "", reason: str = "",
        timeout: float | None = None,
    ) -> Any: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, step: str, function: Callable[..., Any], /, *args: Any, type: type[V],
        apply: Callable[[Any, V], Any] | None = None, default: Any = ...,
        state_type: object, idempotent: bool = False, check: Callable[[Step], Any] | None = None,
        retry: int | Retry = 0, durability: Durability = "postgres", actor: str = "", reason: str = "",
        timeout: float | None = None,
    ) -> V: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, step: str, function: Callable[..., Any], /, *args: Any, type: object = None,
        apply: Callable[[Any, Any], Any] | None = None, default: Any = ...,
        state_type: object, idempotent: bool = False, check: Callable[[Step], Any] | None = None,
        retry: int | Retry = 0, durability: Durability = "postgres", actor: str = "", reason: str = "",
        timeout: float | None = None,
    ) -> Any: ...  # fmt: skip
    async def step(
        self,
        name: str,
        step: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        type: Any = None,  # noqa: A002
        apply: Callable[[Any, Any], Any] | None = None,
        default: Any = ...,
        state_type: Any = None,
        idempotent: bool = False,
        check: Callable[[Step], Any] | None = None,
        retry: int | Retry = 0,
        durability: Durability = "postgres",
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Run `function(step, *args)` once for this key and step, and return its result, then and ever after.

        `step.idempotency_key` is for whatever the function calls: it is the same on every attempt. The result, as it is
        read back with `type`, is kept at `<key>/steps/<step>`, in one commit with what `apply(value, result)` makes of
        the value of the key (`default` where there is none, `state_type` its type). Before the function is called,
        Postgres holds that the attempt begins; `durability` is that of the end.

        Where an attempt was cut off or raised, nobody knows whether it had its effect: later calls raise StepUnknown,
        until `check(step)` returns Done(result) or NotDone(), or `resolve_step` is called; with `idempotent=True` the
        function runs again. Exceptions of `retry` (a number of times after any, or a `Retry`) mean that it may run
        again. A step that another agent runs is waited for. Raises StepMismatch where the step was begun with other
        arguments.

        `timeout` bounds what comes before the function, and again what comes after it, in seconds; not the function.
        """
        key = checked_key(self._view.full(name))
        steps.check_calls(function, args, plain=self._runtime.io.plain, apply=apply, check=check)
        self._view.refuse_unlike(default, state_type)
        terms = Terms(
            type=type,
            apply=apply,
            default=default,
            state_type=state_type,
            idempotent=idempotent,
            check=check,
            retry=steps.checked_retry(retry),
            durability=self._view.durability_of(durability),
            actor=checked_text(actor, "actor"),
            reason=checked_reason(reason),
            timeout=timeout,
        )
        return await StepCall(self._view, key, step, function, args, terms).result()

    async def resolve_step(
        self,
        name: str,
        step: str,
        *,
        result: Any = ...,
        not_done: bool = False,
        type: Any = None,  # noqa: A002
        durability: Durability = "postgres",
        actor: str = "",
        reason: str = "",
        timeout: float | None = None,
    ) -> State[Any]:
        """Record what became of a step of which nobody knew: its result, or that it had no effect and may run again.

        The agent's next call of the step then goes on from there: it applies the result, or runs the function. Returns
        the state of the step's record. Raises NotFound where the step never began, UsageError where it may still run,
        or where its end is known.
        """
        if (result is ...) != not_done:
            raise UsageError("resolve_step takes either result= or not_done=True")
        key, end = checked_key(self._view.full(name)), self._view.end_of(timeout)
        record_key = checked_key(steps.record_key(key, step))
        claim = self._runtime.claims.of(record_key)
        try:
            held = await self._left(key, record_key, claim, end)
            data = b""
            if not not_done:
                codec, most = codec_for(type, self._view.encoding), self._view.value_bytes_max
                data = codec.encode(result, key=record_key, bytes_max=most, beside=steps.RECORD_BYTES)[0]
            status: steps.Status = "failed" if not_done else "ran"
            said = steps.ended(held.step, status, at=wall(), result=data, error="resolved by hand")
            write = record_write(self._view, record_key, said, held.change_id, self._view.encoding)
            commit = self._runtime.committer.new(
                [write],
                self._runtime.keys.shard(key),
                durability=self._view.durability_of(durability),
                actor=checked_text(actor, "actor"),
                reason=checked_reason(reason),
                end=end,
                locks=self._view.locks_of((record_key,)),
            )
            return self._view.committed_state(write, await self._runtime.committer.commit(commit), 0)
        finally:
            await claim.give_back()

    async def _left(self, key: str, record_key: str, claim: Claim, end: float) -> Held:
        """Return the record of a step of which nobody knows whether it ran, once nobody may still run it."""
        while True:
            _, held = await held_step(self._runtime, record_key, end=end)
            if held is None:
                raise NotFound(record_key, hint="The step never began: look at its name, or call step() to run it.")
            steps.check_unknown(held.step, key=key)
            if claim.covers(held.step, held.change_id) or await claim.take(held.step, held.change_id, end=end):
                return held
            if claim.is_anothers or monotonic() + claim.pause_s_max > end:
                raise steps.may_run(held.step, key=key)
            await self._runtime.io.sleep(claim.pause_s_max)
