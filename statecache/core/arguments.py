"""What calls are given, checked before anything is done: each refusal names the argument, and what is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from statecache.errors import CodecError, UsageError
from statecache.model import (
    DURABILITIES,
    LOCKINGS,
    READ_MODES,
    VALUE_BYTES_MAX,
    Policy,
    Position,
    State,
)
from statecache.record_classes import name_of
from statecache.rules.checkpoints import checked_checkpoint_policy
from statecache.rules.retention import checked_retention

if TYPE_CHECKING:
    from statecache.codec import Codec

NUMBER_MAX = 2**63 - 1
"""The greatest number that Postgres holds: no version, epoch or n comes to it."""
_DEFAULT = "A default is a value of the type that is read, or a class or function that makes one."


def refuse_no_names(names: Any, verb: str) -> None:
    """Raise UsageError for one text in the place of names, and for what holds none."""
    if isinstance(names, str):
        raise UsageError(f"{verb} takes names, not one text", hint=f"Say {verb}([{names!r}]).")
    if not isinstance(names, Iterable):
        raise UsageError(f"{verb} takes names, not {_a(names)}", hint=f"Say {verb}(['runs/42', 'runs/43']).")


def refuse_no_mapping(values: Any, verb: str) -> None:
    """Raise UsageError for what is no dictionary of names and values."""
    if not isinstance(values, Mapping):
        what = f"{verb} takes a dictionary of names and values, not {_a(values)}"
        raise UsageError(what, hint=f"Say {verb}({{'runs/42': value}}).")


def refuse_no_list(writes: Any, verb: str) -> None:
    """Raise UsageError for what is no list of writes."""
    if not isinstance(writes, Collection):
        raise UsageError(f"{verb} takes a list of writes, not {_a(writes)}", hint=f"Say {verb}([Set(name, value)]).")


def refuse_no_function(function: Any, verb: str) -> None:
    """Raise UsageError for what cannot be called."""
    if not callable(function):
        raise UsageError(f"{verb} takes a function, not {_a(function)}")


def checked_state(state: Any, verb: str) -> State[Any]:
    """Return a state unchanged; raise UsageError for what is none, and for a default, which nobody has stored."""
    if not isinstance(state, State):
        hint = "A delete that found nothing gives None: there is nothing to wait for." if state is None else ""
        raise UsageError(f"{verb} takes a State, as a write returns it, not {_a(state)}", hint=hint)
    if not state.change_id:
        raise UsageError(f"{verb} takes a State that was stored, and this one of {state.key!r} is a default")
    return state


def checked_position(position: Any, name: str = "position") -> Position | None:
    """Return a position unchanged, None as well; raise UsageError for what is none, or none that a commit can have."""
    if position is None:
        return None
    if not isinstance(position, Position):
        hint = "A State and an error have it: state.position."
        raise UsageError(f"{name}={position!r} is not a Position", hint=hint)
    if not all(isinstance(part, int) and abs(part) < NUMBER_MAX for part in position):
        raise UsageError(f"{name}={position!r} is not a Position that a commit can have")
    return position


def checked_moment(moment: Any, name: str) -> datetime:
    """Return a time as one of UTC; raise UsageError for what is none, has no time zone, or is beyond UTC's years."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise UsageError(f"{name}={moment!r} is not a time with a time zone", hint="Say datetime.now(UTC).")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{name}={moment!r} is not within the years 1 to 9999 of UTC") from None


def refuse_no_limit(limit: Any) -> None:
    """Raise UsageError for what is no number of things to be given at most; None is as many as there are."""
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise UsageError(f"limit={limit!r} is not a whole number above 0")


def refuse_no_version(version: Any) -> None:
    """Raise UsageError for a version that a key cannot have reached."""
    if isinstance(version, bool) or not (isinstance(version, int) and version >= 0):
        raise UsageError(f"min_version={version!r} is not a whole number from 0 up", hint="Give a State's `version`.")


def checked_mode(read: Any, max_stale: Any) -> str:
    """Return how a call reads, or raise UsageError."""
    if read not in READ_MODES:
        raise UsageError(f"read {read!r} is not one of {', '.join(READ_MODES)}")
    if max_stale is None or (read == "local" and _is_span(max_stale)):
        return str(read)
    raise UsageError(f"max_stale={max_stale} is for local reads, in seconds, not below 0")


def _is_span(seconds: Any) -> bool:
    return isinstance(seconds, (int, float)) and seconds >= 0


def _a(given: Any) -> str:
    """Return what a thing is called that was given in the place of another."""
    return "None" if given is None else f"this {name_of(given.__class__)}"


def refuse_unlike(default: Any, codec: Codec) -> None:
    """Raise UsageError for a default that is not of the type of values; None, and what makes one, is taken."""
    if not (default is None or callable(default) or codec.takes(default)):
        raise UsageError(f"default= is a {name_of(default.__class__)}, not a {name_of(codec.type)}", hint=_DEFAULT)


def made_default(default: Any, codec: Codec, *, key: str, bytes_max: int) -> Any:
    """Return a default as readers get a value that was stored, so that whoever changes it changes nobody else's.

    Raises UsageError for one that cannot be a value.
    """
    value = default() if callable(default) else default
    if value is None:
        return None
    own = codec.of(value)
    try:
        data, _ = own.encode(value, key=key, bytes_max=bytes_max)
    except CodecError as error:
        raise UsageError(f"default= cannot be a value, at {error.path}: {error.reason}", hint=_DEFAULT) from error
    return own.decode(data, key=key, schema=own.schema)


def checked_policy(policy: Policy) -> Policy:
    """Return a namespace's policy unchanged, or raise UsageError."""
    if policy.durability not in (None, *DURABILITIES):
        raise UsageError(f"durability {policy.durability!r} is not one of {', '.join(DURABILITIES)}")
    if policy.read not in (None, *READ_MODES):
        raise UsageError(f"read {policy.read!r} is not one of {', '.join(READ_MODES)}")
    if policy.locking not in (None, *LOCKINGS):
        raise UsageError(f"locking {policy.locking!r} is not one of {', '.join(LOCKINGS)}")
    checked_retention(policy.history, policy.retention, policy.retention_count)
    ttl = policy.redis_ttl
    if ttl is not None and not (isinstance(ttl, timedelta) and ttl > timedelta(0)):
        raise UsageError(f"redis_ttl={ttl!r} is not a timedelta above 0", hint="Say redis_ttl=timedelta(seconds=5).")
    if policy.upgrade is not None and policy.encoding == "raw":
        raise UsageError("raw bytes have no version, so there is nothing to upgrade", hint="Leave out upgrade=.")
    if policy.merge is not None and not callable(policy.merge):
        raise UsageError("merge= is a function of base, ours and theirs")
    if policy.checkpoint is not None:
        checked_checkpoint_policy(policy.checkpoint)
    size = policy.value_bytes_max
    if size is not None and not (isinstance(size, int) and 1 <= size <= VALUE_BYTES_MAX):
        raise UsageError(f"value_bytes_max={policy.value_bytes_max} is not from 1 to {VALUE_BYTES_MAX}")
    return policy


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise UsageError for the first argument that is none of a namespace's policy."""
    for name in names:
        near = get_close_matches(name, Policy.__struct_fields__, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"namespace() takes no {name}{meant}", hint=f"It takes {', '.join(Policy.__struct_fields__)}.")
