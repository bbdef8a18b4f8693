"""Steps that run once, decided purely: what a step's record says, and what to do about it.

A step is a function with an effect outside of statecache: a charge, a mail, a deployment. Its record is a state of its
own at `<key>/steps/<name>`, written before the function runs and again after it:

    (nothing) ──▶ intent ──▶ done      the result is kept; whoever asks again is given it
                    │ ├────▶ failed    the function raised, and may run again: the caller said so, or a person did
                    │ ├────▶ unknown   the function raised or was cut off: whether it had its effect is not known
                    │ └────▶ ran       the effect happened and its result is kept; what follows from it for the value
                    │                  of `key` is still to be committed
                    └──────▶ intent    once more, with the same idempotency key: only where that is allowed

A step is begun, and gone on with, by whoever holds its claim: a lease that is taken before the intent and held until
the step is over. Once nobody has held it for long enough, an intent's writer is dead, and nobody knows how far it came:
`unknown`. From there the way on is one of three: the step is idempotent, so it runs again with the same idempotency
key; `check=` finds out; a person says what happened. Nothing runs again by itself.

Every record is written by compare-and-set on the one before it. So of two who claim a step one gets it, and whoever was
taken for dead and wakes cannot overwrite what happened since.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from statecache.codec import dumped
from statecache.errors import CodecError, InvalidKey, StepMismatch, UsageError
from statecache.signal_errors import pass_on

R = TypeVar("R")

Status = Literal["intent", "done", "failed", "unknown", "ran"]
Verdict = Literal["run", "give", "apply", "claim", "ask"]

RECORD_BYTES = 8 * 1024
"""What a record may need beside its result, in bytes."""
ERROR_CHARACTERS_MAX = 1000
RETRIES_MAX = 1000
PAUSE_S_MAX = 30.0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The first argument of a step's function: who runs, and the idempotency key to pass on.

    `idempotency_key` stays the same however often the step is tried; `attempt` counts from 1, over all agents.
    """

    key: str
    name: str
    idempotency_key: str
    attempt: int


class Done(msgspec.Struct, Generic[R], frozen=True):
    """The answer of `check=` that the effect happened, with the result that the function would have returned."""

    result: R


class NotDone(msgspec.Struct, frozen=True):
    """The answer of `check=` that the effect did not happen and never will: the step runs again."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The exceptions after which a step's function may run again, and how often it is repeated at once.

    `on` are exceptions after which the effect did not happen, or may happen twice. One call repeats the function at
    most `times` times, after pauses drawn at random up to a bound that begins at `pause_s` and doubles, up to 30
    seconds.
    """

    times: int = 3
    on: tuple[type[Exception], ...] = (Exception,)
    pause_s: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.times <= RETRIES_MAX:
            raise UsageError(f"retry times={self.times} is not from 0 to {RETRIES_MAX}")
        if not 0 <= self.pause_s <= PAUSE_S_MAX:
            raise UsageError(f"retry pause_s={self.pause_s} is not from 0 to {PAUSE_S_MAX:g} seconds")
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in self.on):
            raise UsageError("retry on= is not a tuple of exception classes")


_NO_RESULT = msgspec.Raw()
NEVER = Retry(times=0, on=())


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a step; `result` holds the bytes of its result, in the record's own encoding."""

    name: str
    status: Status
    fingerprint: str
    idempotency_key: str
    attempts: int
    started_at: datetime
    ended_at: datetime | None = None
    result: msgspec.Raw = _NO_RESULT
    error: str = ""


def record_key(key: str, name: object) -> str:
    """Return the key of a step's record; raise InvalidKey unless the step's name is one segment."""
    if not isinstance(name, str):
        raise InvalidKey(name, reason=f"the name of a step is text, not a {type(name).__name__}")
    if not name or "/" in name:
        raise InvalidKey(name, reason="the name of a step is one segment, not empty and without a slash")
    return f"{key}/steps/{name}"


def claim_of(record_key: str) -> str:
    """Return the name of the lock that whoever runs a step holds; it is not a valid key, so it is no user's lock."""
    return f"{record_key}/"


class Watch:
    """How long the claim of an intent has been seen free, while somebody could have taken it.

    Where two looks are far apart, the time between counts only in part: the server may have been away meanwhile.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._change_id = ""
        self._seen = self._watched_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the claim has been free for long enough."""
        return self._watched_s >= self._silent_s

    def begin(self, change_id: str, now: float) -> None:
        """Begin to watch: the claim of the intent that this change wrote was found free."""
        self._change_id, self._seen, self._watched_s = change_id, now, 0.0

    def goes_on(self, change_id: str, now: float) -> bool:
        """Note that the record was seen, and return whether it is still the intent that is watched."""
        if not self._change_id or change_id != self._change_id:
            return False
        self._watched_s += min(now - self._seen, self._silent_s / 4)
        self._seen = now
        return True

    def saw(self, took_s: float) -> bool:
        """Return whether an answer came quickly enough to be counted."""
        return took_s <= self._silent_s / 4

    def end(self) -> None:
        """Stop watching: somebody has the claim."""
        self._change_id = ""


def checked_retry(retry: int | Retry) -> Retry:
    """Return the Retry that `retry=` means: a number is that many times after any exception; or raise UsageError."""
    if isinstance(retry, Retry):
        return retry
    if not isinstance(retry, int) or isinstance(retry, bool):
        raise UsageError(f"retry={retry!r} is neither a number nor a Retry")
    return Retry(times=retry) if retry else NEVER


_written = msgspec.json.Encoder(enc_hook=dumped, order="sorted").encode


def check_calls(
    function: object, args: Sequence[object], *, plain: bool, apply: object | None = None, check: object | None = None
) -> None:
    """Raise UsageError where a step's functions cannot be called as they will be; later nobody would know what ran.

    Where only `plain` functions can be called, one that has to be awaited is refused.
    """
    calls = [
        ("the function", function, ("step", *args), f"(step{', …' if args else ''})"),
        ("apply=", apply, ("value", "result"), "(value, result)"),
        ("check=", check, ("step",), "(step)"),
    ]
    for what, called, given, spelled in calls:
        if called is None and what != "the function":
            continue
        if not callable(called):
            raise UsageError(f"{what} of a step cannot be called")
        if plain and inspect.iscoroutinefunction(called):
            raise UsageError("StateCache takes plain functions, not async ones", hint="AsyncStateCache takes both.")
        try:  # a decorator is called as it stands, and may pass on more or less
            signature = inspect.signature(called, follow_wrapped=False)
        except (TypeError, ValueError):  # some builtins do not tell
            continue
        try:
            signature.bind(*given)
        except TypeError as error:
            raise UsageError(f"{what} of a step cannot be called as {spelled}: {error}") from None


def fingerprint_of(args: Sequence[Any], *, key: str) -> str:
    """Return the fingerprint of a function's arguments: the same for values that are stored as the same JSON.

    Raises CodecError for arguments that cannot be stored; a closure or functools.partial can provide these instead.
    """
    try:
        try:
            data = _written(list(args))
        except TypeError as error:
            if "str keys" not in str(error):
                raise
            data = _written(msgspec.json.decode(msgspec.json.encode(list(args), enc_hook=dumped)))
    except Exception as error:  # users' own classes take part
        pass_on(error)
        hint = "; bind it to the function, with functools.partial, where it does not belong to what the step is about"
        raise CodecError(key=key, path="args", reason=f"{error}{hint}") from error
    return hashlib.sha256(data).hexdigest()[:32]


def check_fingerprint(record: StepRecord, fingerprint: str, *, key: str) -> None:
    """Raise StepMismatch where the step was begun with other arguments."""
    if record.fingerprint != fingerprint:
        raise StepMismatch(key, record.name, expected=record.fingerprint, actual=fingerprint)


def verdict_on(record: StepRecord | None, *, claimed: bool, applies: bool) -> Verdict:
    """Decide what to do about a step with this record.

    `give`: return the kept result. `apply`: commit what follows from it first. `claim`: take the step's lock. With the
    claim: `run` the step, or `ask` what became of it.
    """
    if record is not None and record.status == "done":
        return "give"
    if record is not None and record.status == "ran":
        return "apply" if applies else "give"
    if not claimed:
        return "claim"
    return "run" if record is None or record.status == "failed" else "ask"


def status_after(error: BaseException, *, idempotent: bool, retry: Retry) -> Status:
    """Return how a step stands whose function raised: `failed` where it may simply run again, else `unknown`."""
    safe = isinstance(error, Exception) and (idempotent or isinstance(error, retry.on))
    return "failed" if safe else "unknown"


def kept_by_another(found: StepRecord | None, ours: StepRecord, *, idempotent: bool) -> bool:
    """Return whether somebody else has kept the result of the effect that ours was the intent of."""
    same = found is not None and (idempotent or found.attempts == ours.attempts)
    return found is not None and same and found.status in ("done", "ran")


def may_run(record: StepRecord, *, key: str) -> UsageError:
    """Return the error that a step is not to be resolved yet."""
    hint = "Look again when its agent has ended it, or has been dead for a while."
    return UsageError(f"the step {record.name!r} of {key!r} may still run", hint=hint)


def calls_itself(name: str, *, key: str) -> UsageError:
    """Return the error that a step is called by its own function."""
    hint = "It would wait for itself: what a step's function calls is a step of another name."
    return UsageError(f"step {name!r} of {key!r} is run by this very task or thread", hint=hint)


def check_unknown(record: StepRecord, *, key: str) -> None:
    """Raise UsageError where it is known how a step ended, so that a person has nothing to say about it."""
    if record.status not in ("intent", "unknown"):
        raise UsageError(f"the step {record.name!r} of {key!r} is {record.status}: nothing about it is unknown")


def intent(before: StepRecord | None, name: str, fingerprint: str, *, new_key: str, at: datetime) -> StepRecord:
    """Return the record of a step that is about to run, for the first time or again."""
    return StepRecord(
        name=name,
        status="intent",
        fingerprint=fingerprint,
        idempotency_key=new_key if before is None else before.idempotency_key,
        attempts=1 if before is None else before.attempts + 1,
        started_at=at,
    )


def ended(record: StepRecord, status: Status, *, at: datetime, result: bytes = b"", error: str = "") -> StepRecord:
    """Return the record of a step that has ended; `result` in the encoding of the record."""
    kept = msgspec.Raw(result) if result else _NO_RESULT
    return msgspec.structs.replace(record, status=status, ended_at=at, result=kept, error=_shortened(error))


def told(error: BaseException) -> str:
    """Return what a record keeps of an error: its kind and its message."""
    return f"{type(error).__name__}: {error}"


def _shortened(text: str) -> str:
    text = text.encode("utf-8", "replace").decode().replace("\0", "")
    return text if len(text) <= ERROR_CHARACTERS_MAX else text[: ERROR_CHARACTERS_MAX - 1] + "…"


def why_unknown(record: StepRecord) -> str:
    """Return why nobody knows whether a step took effect."""
    if record.status == "unknown":
        return record.error or "it was cut off"
    return f"attempt {record.attempts} was begun at {record.started_at:%Y-%m-%d %H:%M:%S} UTC and never ended"
