"""Input that is refused: each bad key, value and commit gives one error that says which, why, and what to do instead.

Nothing of it is written, and other keys go on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from statecache import (
    AsyncStateCache,
    CodecError,
    InvalidKey,
    LimitExceeded,
    Settings,
    StateCacheError,
    UsageError,
)
from statecache.model import COMMIT_BYTES_MAX, STATES_PER_COMMIT_MAX, VALUE_BYTES_MAX

KEY = "runs/42"
KEY_RULE = "Keys look like namespace/name[/more], at most 512 UTF-8 bytes."
MESSAGE_CHARACTERS_MAX = 500


class Refused(NamedTuple):
    """Bad input, and what its error is to be: its kind, what it is about, the reason, and the remedy."""

    call: Callable[[AsyncStateCache], Awaitable[Any]]
    kind: type[StateCacheError]
    about: str
    reason: str
    remedy: str


def _key(key: Any, reason: str, shown: str = "") -> Refused:
    return Refused(lambda client: client.set(key, 1), InvalidKey, shown or repr(key), reason, KEY_RULE)


def _value(make: Callable[[], Any], reason: str, remedy: str, **policy: Any) -> Refused:
    """Return the case of a bad value, made when the test runs: some are too large or odd for the name of a test."""
    return Refused(
        lambda client: client.namespace("runs", **policy).set("42", make()), CodecError, repr(KEY), reason, remedy
    )


def _cycle() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def _transact(*names: str, value: Any = 1) -> Callable[[AsyncStateCache], Awaitable[Any]]:
    def write(tx: Any) -> None:
        for name in names:
            tx.set(name, value)

    return lambda client: client.transact(names, write)


NO_NUMBER = "is not a number that can be stored"
REFUSED = {
    "an empty key": _key("", "it has one segment and needs two or more"),
    "a key of one segment": _key("runs", "it has one segment and needs two or more"),
    "an empty first segment": _key("/42", "its segment 1 is empty"),
    "an empty segment": _key("runs//42", "its segment 2 is empty"),
    "an empty last segment": _key("runs/42/", "its segment 3 is empty"),
    "a key with NUL": _key("runs/4\0002", "it holds a NUL"),
    "a key with a lone surrogate": _key("runs/\ud800", "it holds a lone surrogate at character 5"),
    "a key of 513 bytes": _key("runs/" + "x" * 508, "it has 513 UTF-8 bytes, more than 512", "'runs/xxxx"),
    "a key of 513 bytes in fewer characters": _key("runs/" + "é" * 254, "it has 513 UTF-8 bytes", "'runs/éééé"),
    "braces in the namespace": _key("{runs}/42", "does not match [A-Za-z0-9_.-]{1,64}"),
    "a colon in the namespace": _key("runs:/42", "does not match [A-Za-z0-9_.-]{1,64}"),
    "a key that is no text": _key(b"runs/42", "it is a bytes, not text"),
    "NaN": _value(lambda: {"a": [math.nan]}, f"at $.a[0]: nan {NO_NUMBER}", "use None or text"),
    "infinity": _value(lambda: math.inf, f"at $: inf {NO_NUMBER}", "use None or text"),
    "minus infinity": _value(lambda: [1, -math.inf], f"at $[1]: -inf {NO_NUMBER}", "use None or text"),
    "infinity in msgpack": _value(lambda: [math.inf], f"$[0]: inf {NO_NUMBER}", "use None or text", encoding="msgpack"),
    "nesting of 100,000 levels": _value(_deep, "it is nested deeper than 200 levels", "flatten it, or split it"),
    "a value that contains itself": _value(_cycle, "at $[1].again: it contains itself", "store a key or an id in"),
    "bytes": _value(lambda: {"raw": b"x"}, "at $.raw: JSON would bring these bytes back as text", "use the msgpack"),
    "an object": _value(lambda: {"a": object()}, "at $.a: a object cannot be stored", "make plain data or a Struct"),
    "a function": _value(lambda: len, "a builtin_function_or_method cannot be stored", "make plain data or a Struct"),
    "a complex number": _value(lambda: [1j], "at $[0]: a complex cannot be stored", "make plain data or a Struct"),
    "a lone surrogate": _value(lambda: ["\ud800"], "at $[0]: 'utf-8' codec can't encode character", "replace them"),
    "a dict key twice": _value(lambda: {1: "a", "1": "b"}, "two of its keys become the same text", "rename one"),
    "a time without a zone": _value(lambda: datetime(2026, 1, 1), "without a time zone", "give it one"),  # noqa: DTZ001
    "an integer beyond msgpack": _value(lambda: [2**64], "at $[0]: can't serialize ints", "2**64", encoding="msgpack"),
    "8 MiB and one more byte": Refused(
        lambda client: client.set(KEY, "x" * (VALUE_BYTES_MAX - 1)), LimitExceeded, repr(KEY),
        f"the value is {VALUE_BYTES_MAX + 1:,} bytes, more than the limit of {VALUE_BYTES_MAX:,} bytes",
        "Split the value over several keys of its group.",
    ),
    "16 MiB and more in one commit": Refused(
        _transact(KEY, f"{KEY}/b", value="x" * (VALUE_BYTES_MAX - 2)), LimitExceeded, repr(KEY),
        f"more than the limit of {COMMIT_BYTES_MAX:,}", "Split the commit",
    ),
    "257 states in one commit": Refused(
        _transact(*(f"{KEY}/{number}" for number in range(257))), UsageError, repr(f"{KEY}/0"),
        f"a transaction takes 1 to {STATES_PER_COMMIT_MAX} keys, not 257", "several transactions",
    ),
    "keys of two groups in one commit": Refused(
        _transact(KEY, "runs/43"), InvalidKey, "'runs/43'", "it is not of the group 'runs/42'",
        "give it a commit of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
async def test_one_error_says_which_why_and_what_to_do(
    client: AsyncStateCache, redis_raw: Any, settings: Settings, refused: Refused
) -> None:
    before = await client.set(KEY, "before")
    assert await client.get(f"{KEY}/b") is None
    held = _everything(redis_raw, settings)
    with pytest.raises(StateCacheError) as caught:
        await refused.call(client)
    assert type(caught.value) is refused.kind
    message = str(caught.value)
    for part in (refused.about, refused.reason, refused.remedy):
        assert part in message
    assert len(message) <= MESSAGE_CHARACTERS_MAX
    assert "\n" not in message
    assert _everything(redis_raw, settings) == held
    assert await client.get(KEY) == before
    assert (await client.set(KEY, "after")).version == 2
    assert (await client.set("runs/other", 1)).version == 1


def _everything(redis_raw: Any, settings: Settings) -> dict[bytes, bytes]:
    names = redis_raw.scan_iter(f"{settings.prefix}:*", count=1000)
    return {name: redis_raw.dump(name) for name in names}
