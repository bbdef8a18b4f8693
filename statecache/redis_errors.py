"""What the error replies of Redis mean: which may be repeated, and the error to raise for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache.errors import ConfigurationError, ForeignData, RedisUnavailable, StateCacheError
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.settings import Settings

AGAIN = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN")
"""The first words of error replies that say that nothing was done, and that a later try may succeed."""
DEMOTED = ("READONLY", "MASTERDOWN")
"""The first words of error replies of a server that is not a primary any more."""
FINAL = ("authentication", "tls")
"""The reasons for refusing a connection that no repetition changes."""
_RIGHTS = ("NOPERM", "ACL failure", "can't run this command", "can't access at least one of the keys")


def code_of(error: Exception) -> str:
    """Return the first word of an error reply, which redis-py removes from some messages."""
    return getattr(error, "status_code", None) or str(error).partition(" ")[0]


def found_at(redis_key: str, reason: str) -> StateCacheError:
    """Return the error for what hindered a script at that Redis key: foreign data, or a right that the user lacks."""
    if any(words in reason for words in _RIGHTS):
        return ConfigurationError(f"the Redis user lacks rights: {reason}", hint="Grant these commands on these keys.")
    return ForeignData(redis_key, reason=reason)


def no_primary(settings: Settings, detail: str) -> RedisUnavailable:
    """Return the error for a server that is not a primary."""
    hint = "redis_url must name the primary; after a failover, the new one."
    return RedisUnavailable("role", detail=f"{masked(settings.redis_url)}: {detail}", hint=hint)


def refusal(error: Exception, redis_key: str) -> StateCacheError:
    """Return the error for an error reply about that Redis key."""
    text, code = str(error), code_of(error)
    if code in ("NOPERM", "WRONGTYPE") or any(words in text for words in _RIGHTS):
        return found_at(redis_key, f"{code} {text.removeprefix(code).strip()}")
    if code == "OOM":
        return RedisUnavailable("memory", detail=f"Redis is out of memory: {text}")
    if code in DEMOTED:
        return RedisUnavailable("role", detail=f"{redis_key}: {code}: {text.removeprefix(code).strip()}")
    return RedisUnavailable("refused", detail=f"{redis_key}: {code}: {text.removeprefix(code).strip()}")
