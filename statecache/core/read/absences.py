"""Keys of which Postgres holds nothing: their absence is proven without a token, by the watermarks of both tiers.

Most keys that Redis lacks are new. So Postgres is first asked only whether it holds anything of them, in the exchange
that tells where it stands with their shards; many tasks that miss at one moment share it. What it holds nothing of is
absent unless Redis knows better: `hydrate_absent.lua` compares, in the moment in which it installs the absence, and
says why that is a proof. Nobody has to wait for a token, and there is none to give back: a reader that is late, or
whose request arrives when all of that is over, finds that the watermark has moved, or that a state is there.

Who reads over the tracked connection does not wait for the install either: Redis is asked for its watermark while
Postgres is looked in, and the reader compares. What Redis told counts for as long as a read on that connection may
take.

What Postgres holds anything of is loaded under a token (`hydration`), and so is what Redis knows better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from statecache.clock import boottime, monotonic
from statecache.commit_protocol.install import Install
from statecache.concurrency.batching import WEIGHT_MAX
from statecache.core.redis.tier import patience_for
from statecache.core.redis.tracked_call import Call
from statecache.errors import Backpressure, ConfigurationError, RedisUnavailable
from statecache.lua import script
from statecache.records import absence
from statecache.redis_errors import FINAL, found_at, refusal

if TYPE_CHECKING:
    from statecache.concurrency import Batcher, Request
    from statecache.core.postgres.tier import PostgresTier
    from statecache.core.redis.tier import RedisTier
    from statecache.core.redis.tracking import TrackedConnection
    from statecache.keys import KeySpace
    from statecache.model import Record
    from statecache.settings import Settings

_SCRIPT = "hydrate_absent"
_LOOK = ("watermarks", "state_keys", "lost_keys")
_WEIGHT = WEIGHT_MAX // 1024
"""What a key counts in a query, whose answer holds no values: at most a thousand keys share one."""


class Looked(NamedTuple):
    """Where Postgres stood with a shard, and of which keys it held anything then or since: a state, or lost changes."""

    epoch: int
    flushed: int
    known: frozenset[str]

    def reaches(self, epoch: str, flushed: str) -> bool:
        """Return whether it holds all that a Redis in that epoch, with that watermark, was flushed into."""
        return self.epoch == int(epoch) and self.flushed >= int(flushed)

    def unknown(self, keys: Sequence[str]) -> list[str]:
        """Return those of the keys of which it held nothing."""
        return [key for key in keys if key not in self.known]


class Absences:
    """The proof that states of a shard are absent, and its installing in Redis."""

    def __init__(self, settings: Settings, keys: KeySpace, redis: RedisTier, postgres: PostgresTier) -> None:
        self._settings = settings
        self._keys = keys
        self._redis = redis
        self._postgres = postgres
        self._batcher: Batcher[tuple[int, Sequence[str]], Looked] = redis.io.batcher(self._look)

    async def look(self, shard: int, keys: Sequence[str], *, end: float) -> Looked:
        """Ask Postgres where it stands with a shard, and of which of its keys it holds anything."""
        seconds = max(end - monotonic(), 0.001)
        return await self._batcher.ask((shard, keys), weight=_WEIGHT * len(keys), seconds=seconds)

    async def _look(
        self, requests: Sequence[Request[tuple[int, Sequence[str]]]], seconds: float
    ) -> list[Looked | Exception]:
        """Look for the keys of many callers in one exchange; where their shards stand is read first."""
        asked = [request.question for request in requests]
        keys = list(dict.fromkeys(key for _, keys in asked for key in keys))
        parameters = {"shards": sorted({shard for shard, _ in asked}), "keys": keys}
        shards, states, lost = await self._postgres.fetch_each(_LOOK, parameters, seconds=seconds)
        places = {shard: (epoch, flushed) for shard, epoch, flushed in shards}
        known = frozenset(key for (key,) in (*states, *lost))
        return [Looked(*places[shard], known) if shard in places else no_row(shard) for shard, _ in asked]

    async def install(
        self, shard: int, keys: Sequence[str], looked: Looked, *, end: float, to_write: bool
    ) -> tuple[dict[str, Record], list[str]]:
        """Install what is absent; return the records of that, and the keys for which a token is needed.

        A key that another reader brought in the meantime is in neither. A Redis that takes no writes is enough for who
        reads; who writes gets Backpressure without free memory, and RedisUnavailable without its disk or its replicas.
        """
        seconds = max(end - monotonic(), 0.001)
        install = self.ahead(shard, keys, looked, to_write=to_write)
        try:
            reply: list[bytes] = await self._redis.script(
                install.script, install.redis_keys, install.arguments,
                seconds=seconds * patience_for(seconds), ahead=True,
            )  # fmt: skip
        except ResponseError as error:
            refused = refusal(error, self._keys.hydrating(shard))
            if not isinstance(refused, RedisUnavailable) or _is_final(refused):
                raise refused from error
            return {}, [*keys]
        except RedisUnavailable as error:
            if _is_final(error):
                raise
            return {}, [*keys]
        verdict, *rest = (part.decode("utf-8", "replace") for part in reply)
        if verdict == "FOREIGN":
            raise found_at(rest[0], rest[1])
        if verdict == "FENCED":
            return {}, [*keys]
        verdicts = dict(zip(keys, rest[2:], strict=True))
        if to_write and "FULL" in verdicts.values():
            raise Backpressure(shard, reason="Redis is out of memory")
        absent = {key: install.records[key] for key, told in verdicts.items() if told in ("ABSENT", "FULL")}
        return absent, [key for key, told in verdicts.items() if told in ("DIRTY", "BEHIND")]

    async def prove(
        self, shard: int, key: str, tracked: TrackedConnection, *, end: float
    ) -> tuple[Looked, Record | None]:
        """Ask both tiers of a key at once; return what Postgres held, and the key's absence if they prove it.

        It is installed without waiting for that. Half of the time that is left when Postgres has answered is for who
        has to prove it otherwise.
        """
        until = boottime() + self._settings.near_window_s / 2
        redis_keys, arguments = self._spelled(shard, [key], epoch="", flushed="", to_write=False)
        call = Call(script(_SCRIPT), redis_keys, arguments, self._redis.io.signal())
        await tracked.start(call, seconds=min(until - boottime(), _half(end)))
        looked = await self.look(shard, [key], end=end)
        left = min(until - boottime(), _half(end))
        if key in looked.known or left <= 0 or not await tracked.answered(call, left) or call.reply is None:
            return looked, None
        verdict, *rest = (part.decode("utf-8", "replace") for part in call.reply)
        if verdict != "OK" or rest[2] != "BEHIND" or not looked.reaches(rest[0], rest[1]):
            return looked, None
        install = self.ahead(shard, [key], looked, to_write=False)
        await tracked.start(Call(script(_SCRIPT), install.redis_keys, install.arguments), seconds=left)
        return looked, install.records[key]

    def ahead(self, shard: int, keys: Sequence[str], looked: Looked, *, to_write: bool = True) -> Install:
        """Return the install of what is absent, for a commit to take along; it holds no token."""
        place = {"epoch": looked.epoch, "flushed": looked.flushed}
        redis_keys, arguments = self._spelled(shard, keys, **place, to_write=to_write)
        return Install(
            shard=shard,
            records={key: absence(key, looked.epoch) for key in keys},
            redis_keys=redis_keys,
            arguments=arguments,
            script=_SCRIPT,
        )

    def _spelled(
        self, shard: int, keys: Sequence[str], *, epoch: int | str, flushed: int | str, to_write: bool
    ) -> tuple[list[str], list[Any]]:
        """Return the script's keys and arguments."""
        redis_keys = self._keys
        fixed = [redis_keys.meta(shard), redis_keys.unflushed(shard), redis_keys.hydrating(shard)]
        ttl_ms = round(self._settings.absent_ttl_s * 1000)
        arguments = [self._settings.fence, epoch, flushed, ttl_ms, purpose(to_write=to_write), *keys]
        return [*fixed, *map(redis_keys.state, keys)], arguments


def purpose(*, to_write: bool) -> str:
    """Return what a load is for, as the scripts take it."""
    return "write" if to_write else "read"


def _half(end: float) -> float:
    return max(end - monotonic(), 0.002) / 2


def _is_final(error: RedisUnavailable) -> bool:
    """Return whether asking again would bring the same."""
    return error.reason in ("refused", "memory", *FINAL)


def no_row(shard: int) -> ConfigurationError:
    """Return the error for a shard of which Postgres has no row."""
    return ConfigurationError(f"Postgres has no row for shard {shard}", hint="Run `statecache migrate`.")
