"""What is to be erased, and what is known of it: in Postgres, and among what is not flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis.exceptions import ResponseError

from statecache.backoff import Backoff
from statecache.clock import monotonic
from statecache.core.history.values import VersionAt
from statecache.core.read.listed import BEHIND, UNKNOWN, Watermark, flushed_in
from statecache.errors import Unavailable, UsageError
from statecache.keys import beyond_prefix
from statecache.redis_errors import refusal

if TYPE_CHECKING:
    from statecache.core.runtime import Runtime

_COMPARES = "Let a worker run, `statecache worker`: it compares them. Then call it again."


class Subject(NamedTuple):
    """What is to be erased: a key with the records below it, or a group with all its keys; who asks for it, and why."""

    key: str
    group: bool
    actor: str
    why: str

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of the other keys that go with it."""
        return (f"{self.key}/",) if self.group else (f"{self.key}/checkpoints/", f"{self.key}/steps/")

    def means(self, key: str) -> bool:
        """Whether a key is to be erased."""
        return key == self.key or key.startswith(self.prefixes)


class Known(NamedTuple):
    """What is known of a subject: its keys, changes of others that are deltas to theirs, other keys made from them.

    Keys that it lacks were committed behind the `mark`, up to which Postgres held the shard.
    """

    mark: Watermark
    keys: frozenset[str]
    deltas: tuple[VersionAt, ...]
    branches: frozenset[str]


async def known_of(runtime: Runtime, subject: Subject, *, seconds: float) -> Known:
    """Look for the subject's keys, in Postgres and among what is not flushed; a shard that tells nothing is opened.

    Raises UsageError where quarantine holds some of it with others' changes, and Unavailable where nothing tells what
    is not flushed: the shard cannot be opened, or a worker has to compare first. So it has where this Postgres holds
    less than Redis remembers as flushed: of what it lacks, it says that there was never anything.
    """
    shard, backoff, end = runtime.keys.shard(subject.key), Backoff(0.005, 0.25), monotonic() + seconds
    asked = {
        "keys": [subject.key], "prefixes": [*subject.prefixes], "shard": shard,
        "beyond": [beyond_prefix(prefix) for prefix in subject.prefixes],
    }  # fmt: skip
    while True:
        dirty, flushed = await _dirty(runtime, shard, end)
        rows = await runtime.postgres.fetch("erase_look", asked, seconds=seconds)
        mark = next((Watermark(int(epoch), n) for what, _, n, epoch in rows if what == "shard"), UNKNOWN)
        if mark.reaches(flushed):
            break
        await _wait(runtime, shard, backoff, end)
    keys = {name for name in dirty if subject.means(name)}
    keys |= {key for what, key, _, _ in rows if what == "key"}
    others = [row for row in rows if row[0] in ("delta", "branch") and not subject.means(row[1])]
    parked: dict[str, set[bool]] = {}
    for what, place, _, key in rows:
        if what == "parked":
            parked.setdefault(place, set()).add(subject.means(key))
    if mixed := sorted(place for place, some in parked.items() if len(some) > 1):
        hint = "Take it in or give it up first: `statecache quarantine`. Or erase the whole group."
        why = f"the entry {mixed[0]} in quarantine holds changes of {subject.key!r} and of others"
        raise UsageError(why, hint=hint)
    deltas = tuple(VersionAt(key, version) for what, key, version, _ in others if what == "delta")
    return Known(mark, frozenset(keys), deltas, frozenset(key for _, key, _, _ in others))


async def _dirty(runtime: Runtime, shard: int, end: float) -> tuple[list[str], Watermark]:
    """Return which keys of a shard are dirty, and how far Redis remembers that it is flushed.

    Nothing tells them where the shard was never opened on this server, as after its Redis came back empty, or until a
    worker has gone through what an epoch began without: it is opened, and the worker waited for.
    """
    names, backoff = runtime.keys, Backoff(0.005, 0.25)
    places, unflushed = [names.meta(shard), names.unflushed(shard), names.changes(shard)], names.unflushed(shard)
    head = ("HMGET", names.meta(shard), "epoch", "flushed", "retired")
    while True:
        seconds = max(end - monotonic(), 0.001)
        try:
            (dirty,), told = await runtime.redis.read_script("dirty", places, [""], behind=[head], seconds=seconds)
        except ResponseError as error:
            raise refusal(error, unflushed) from error
        if isinstance(dirty, bytes):
            raise refusal(ResponseError(dirty.decode("utf-8", "replace")), unflushed)
        if isinstance(told, Exception):
            raise refusal(told, names.meta(shard)) from told
        if not isinstance(dirty, int):
            return [name.decode("utf-8", "replace") for name in dirty], flushed_in(*told)
        await runtime.opener.open(shard, end=end)
        await _wait(runtime, shard, backoff, end)


async def _wait(runtime: Runtime, shard: int, backoff: Backoff, end: float) -> None:
    """Wait a moment for a worker; raise Unavailable where none has compared in time."""
    if backoff.outlasts(end):
        raise Unavailable("hydration", detail=f"in shard {shard} {BEHIND}", hint=_COMPARES)
    await runtime.redis.io.sleep(backoff.take())
