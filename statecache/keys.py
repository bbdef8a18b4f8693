"""Keys, groups, shards, and the only place that spells a Redis key.

A key is `namespace/name[/more…]`. Its first two segments are its group, and a group lives on one shard:
`crc32(group) % shards`, the same in every process, on every machine and in every release. The Redis key of a state is

    <prefix>:{<shard>}:state:<key>

The prefix and the namespace come from a small alphabet, so the first pair of braces is ours and is the hash tag; the
user's key comes last, so whatever else it holds (braces, colons, blanks, any Unicode) cannot reach beyond itself, and
no two keys share a Redis key. Keys are compared as they were given, never normalised: the composed and the decomposed
spelling of `é` are two keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from statecache.errors import ConfigurationError, InvalidKey, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KEY_BYTES_MAX = 512
HASH = "crc32"
GROUP_RULE = "first-two-segments"
_LAST_CHARACTER = "\U0010ffff"

_NAME = r"[A-Za-z0-9_.-]{1,64}"
_parts = re.compile(r"(.*):\{(\d+)\}(:.*)").fullmatch
_BY_NAME = re.compile(r"(?:(?<=:state:)|(?<=:events:)|(?<=:turn:)|(?<=:calls:)).*")
_is_name = re.compile(_NAME).fullmatch
_is_plain_key = re.compile(_NAME + r"(?:/[\x01-.0-\x7f]+)+").fullmatch
_is_plain_prefix = re.compile(_NAME + r"(?:/[\x01-.0-\x7f]+)*/(?:[\x01-.0-\x7f]+)?").fullmatch


def checked_key(key: object) -> str:
    """Return the key unchanged, or raise InvalidKey with the rule that it breaks."""
    if type(key) is str and len(key) <= KEY_BYTES_MAX and _is_plain_key(key):
        return key
    text = _checked_text(key)
    segments = text.split("/")
    if len(segments) < 2:
        raise InvalidKey(key, reason="it has one segment and needs two or more")
    _check_segments(text, segments)
    return text


def checked_prefix_of_list(prefix: object, shards: int) -> tuple[str, int | None]:
    """Return a listing's prefix and the one shard that can hold its keys, or None where all can; or raise InvalidKey.

    A prefix completes at least the namespace (`runs/`); what follows may stop anywhere (`runs/4`). Only a complete
    group (`runs/42/`) is known to be on one shard.
    """
    if not (type(prefix) is str and len(prefix) <= KEY_BYTES_MAX and _is_plain_prefix(prefix)):
        text = _checked_text(prefix)
        segments = text.split("/")
        if len(segments) < 2:
            whole = f"a prefix to list by names a whole namespace, like '{text or 'runs'}/'; namespaces() lists them"
            raise InvalidKey(prefix, reason=whole)
        _check_segments(text, segments if segments[-1] else segments[:-1])
        prefix = text
    complete = prefix.find("/", prefix.index("/") + 1) >= 0
    return prefix, shard_of(prefix, shards) if complete else None


def checked_namespace(name: object) -> str:
    """Return the name of a namespace unchanged, or raise InvalidKey."""
    text = _checked_text(name)
    if not _is_name(text):
        raise InvalidKey(name, reason=_namespace_reason(text))
    return text


def beyond_prefix(prefix: str) -> str:
    """Return a text that comes, in byte order, behind every key that begins with the prefix."""
    return prefix + _LAST_CHARACTER * (KEY_BYTES_MAX // len(_LAST_CHARACTER.encode()))


def group_of(key: str) -> str:
    """Return the first two segments of a checked key."""
    end = key.find("/", key.index("/") + 1)
    return key if end < 0 else key[:end]


def checked_group(key: object) -> str:
    """Return the key of a whole group unchanged, or raise InvalidKey."""
    text = checked_key(key)
    if group_of(text) != text:
        raise InvalidKey(key, reason=f"it is no group: that is its first two segments, {group_of(text)!r}")
    return text


def shard_of(key: str, shards: int) -> int:
    """Return the shard of a checked key or of a group."""
    return crc32(group_of(key).encode()) % shards


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The names of the Redis keys of one prefix and shard count; those of a shard's fixed keys are made once."""

    prefix: str = "sc"
    shards: int = 64
    _meta: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _changes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _unflushed: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _hydrating: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _leases: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _waiters: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _events: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _state: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _turn: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _calls: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _is_name(self.prefix):
            raise ConfigurationError(f"the prefix {self.prefix!r} does not match {_NAME}")
        if self.shards < 1:
            raise ConfigurationError(f"the shard count is {self.shards} and must be at least 1")
        for kind in ("meta", "changes", "unflushed", "hydrating", "leases", "waiters", "events"):
            object.__setattr__(self, f"_{kind}", tuple(f"{tag}:{kind}" for tag in self._tags()))
        for kind in ("state", "turn", "calls"):
            object.__setattr__(self, f"_{kind}", tuple(f"{tag}:{kind}:" for tag in self._tags()))

    def _tags(self) -> Iterable[str]:
        return (f"{self.prefix}:{{{shard:02d}}}" for shard in range(self.shards))

    def meta(self, shard: int) -> str:
        """Return the name of the hash of a shard's epoch, counters and pin."""
        return self._meta[shard]

    def changes(self, shard: int) -> str:
        """Return the name of a shard's change stream."""
        return self._changes[shard]

    def unflushed(self, shard: int) -> str:
        """Return the name of the sorted set of a shard's dirty keys."""
        return self._unflushed[shard]

    def hydrating(self, shard: int) -> str:
        """Return the name of the hash of a shard's hydration tokens."""
        return self._hydrating[shard]

    def leases(self, shard: int) -> str:
        """Return the name of the hash of a shard's leases."""
        return self._leases[shard]

    def waiters(self, shard: int) -> str:
        """Return the name of the hash of the queues at a shard's locks."""
        return self._waiters[shard]

    def events(self, shard: int, client: str = "") -> str:
        """Return the sharded channel on which a shard's watermark is announced, or a client's waiters are called."""
        return f"{self._events[shard]}:{client}" if client else self._events[shard]

    def state(self, key: str) -> str:
        """Return the name of the hash of a checked key's state."""
        return self._state[self.shard(key)] + key

    def turn(self, key: str) -> tuple[str, str, str]:
        """Return three names: the hash of who updates a state next, the list on which others wait, the state's hash."""
        shard = self.shard(key)
        return self._turn[shard] + key, self._calls[shard] + key, self._state[shard] + key

    def turn_stems(self, shard: int) -> tuple[str, str]:
        """Return what the first two names that `turn` gives begin with; the key follows."""
        return self._turn[shard], self._calls[shard]

    def state_stem(self, shard: int) -> str:
        """Return what the name of the hash of every state of a shard begins with; the key follows."""
        return self._state[shard]

    def key_of(self, redis_key: bytes) -> str:
        """Return the key of a state by the name of its hash; for other names, a text that is no key."""
        return redis_key.decode("utf-8", "replace").partition(":state:")[2]

    def every_state(self) -> str:
        """Return a pattern that the names of all states' hashes match, and few others."""
        return f"{self.prefix}:{{*}}:state:*"

    def bell(self) -> str:
        """Return the name of the stream by which workers tell one another to redistribute the shards."""
        return f"{self.prefix}:{{00}}:bell"

    def names(self, keys: Iterable[str]) -> Iterator[str]:
        """Yield the name of every Redis key that a deployment can have which holds states of these keys alone."""
        yield self.bell()
        for kind in (self._meta, self._changes, self._unflushed, self._hydrating, self._leases, self._waiters):
            yield from kind
        for key in keys:
            yield from self.turn(key)

    def place(self, key: str) -> tuple[int, str]:
        """Return a checked key's shard and the name of its state's hash."""
        shard = self.shard(key)
        return shard, self._state[shard] + key

    def shard(self, key: str) -> int:
        """Return a checked key's shard."""
        end = key.find("/", key.index("/") + 1)
        return crc32((key if end < 0 else key[:end]).encode()) % self.shards

    def one_group(self, keys: Iterable[str]) -> int:
        """Return the one shard of a commit's checked keys; raise InvalidKey for the first of another group."""
        group = ""
        for key in keys:
            if not group:
                group = group_of(key)
            elif group_of(key) != group:
                raise InvalidKey(key, reason=f"it is not of the group {group!r}; give it a commit of its own")
        if not group:
            raise UsageError("a commit needs at least one key")
        return self.shard(group)


def parts_of_name(redis_key: str) -> tuple[str, str, str] | None:
    """Return the prefix, the shard's number, and the kind of a name, as a pattern; None for what is no name of ours.

    A kind begins with a colon: `:meta`, or `:state:*` for that of every state.
    """
    found = _parts(redis_key)
    return (found[1], found[2], _BY_NAME.sub("*", found[3])) if found else None


def pattern(prefix: str, shard: str, kind: str) -> str:
    """Return the pattern of the names of a kind on one shard, or on every one, `*`."""
    return f"{prefix}:{{{shard}}}{kind}"


def _checked_text(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidKey(key, reason=f"it is a {type(key).__name__}, not text")
    text = str.__str__(key)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidKey(key, reason=f"it holds a lone surrogate at character {error.start}") from None
    if size > KEY_BYTES_MAX:
        raise InvalidKey(_shortened(text), reason=f"it has {size} UTF-8 bytes, more than {KEY_BYTES_MAX}")
    if "\0" in text:
        raise InvalidKey(key, reason="it holds a NUL")
    return text


def _check_segments(key: str, segments: list[str]) -> None:
    if not all(segments):
        raise InvalidKey(key, reason=f"its segment {segments.index('') + 1} is empty")
    if not _is_name(segments[0]):
        raise InvalidKey(key, reason=_namespace_reason(segments[0]))


def _namespace_reason(name: str) -> str:
    return f"its namespace {_shortened(name)!r} does not match {_NAME}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
