"""What the error replies of Redis mean: which may be repeated, and the error to raise for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from statecache.errors import ConfigurationError, ForeignData, RedisUnavailable, StateCacheError
from statecache.lua import names, script
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.settings import Settings

AGAIN = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN")
"""The first words of error replies that say that nothing was done, and that a later try may succeed."""
DEMOTED = ("READONLY", "MASTERDOWN")
"""The first words of error replies of a server that is not a primary any more."""
CLUSTER = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN")
"""The first words of error replies that only a node of a Redis Cluster gives."""
FINAL = ("authentication", "tls")
"""The reasons for refusing a connection that no repetition changes."""
CLUSTER_NODE = "this is a node of a Redis Cluster, which is not supported"
SENTINEL = "this is a Redis Sentinel, which holds no data and is not asked where the primary is"
NO_CLUSTER = "Use one primary, with replicas, and name the primary itself in redis_url."
NO_SENTINEL = "Name the primary that it watches in redis_url, by an address that follows it: a proxy's, or a DNS name."
SERVERS = (
    "Use Redis 7.0, Valkey 7.2 or newer, and take no command away by rename-command; "
    "behind a proxy that hides what they can do, set fence=off."
)
_LINE = re.compile(r"script: ([0-9a-f]{40}), on @user_script:(\d+)")
_CALL = re.compile(r"call\('([A-Z]+)'")
_UNKNOWN = re.compile(r"unknown (?:redis )?command(?:,? ?['`\"]([^'`\"]+)['`\"])?", re.IGNORECASE)
GRANT = "Grant this to the Redis user, as config/users.acl has it."
_RIGHTS = ("NOPERM", "ACL failure", "can't run this command", "can't access at least one of the keys")


def code_of(error: Exception) -> str:
    """Return the first word of an error reply, which redis-py removes from some messages."""
    return getattr(error, "status_code", None) or str(error).partition(" ")[0]


def found_at(redis_key: str, reason: str) -> StateCacheError:
    """Return the error for what hindered a script at that Redis key: foreign data, or a right that the user lacks."""
    if any(words in reason for words in _RIGHTS):
        told = f"the Redis user lacks rights: {reason}{_command_in(reason)}, at {redis_key}"
        return ConfigurationError(told, hint="Grant these commands on these keys.")
    if (lacking := lacking_command(reason)) is not None:
        return lacking
    return ForeignData(redis_key, reason=reason)


def lacking_command(reason: str) -> ConfigurationError | None:
    """Return the error for a command that the server does not know, or None where it said something else."""
    what = unknown_command(reason)
    return ConfigurationError(f"this Redis server lacks {what}", hint=SERVERS) if what else None


def unknown_command(reason: str) -> str:
    """Return what a server does not know by its answer, as `the command NAME`; '' where it said something else."""
    found = _UNKNOWN.search(reason)
    if found is None:
        return ""
    return f"the command {found[1]}" if found[1] else f"a command: {reason}{_command_in(reason)}"


def _command_in(reason: str) -> str:
    """Return which commands stand on the line of ours that an error in a script tells, for the server names none."""
    found = _LINE.search(reason)
    text = next((one.text for one in map(script, names()) if found and one.sha == found[1]), "")
    line = text.splitlines()[int(found[2]) - 1] if found and text else ""
    run = " or ".join(dict.fromkeys(_CALL.findall(line)))
    return f": {run}" if run else ""


def no_primary(settings: Settings, detail: str) -> RedisUnavailable:
    """Return the error for a server that is not a primary."""
    hint = "redis_url must name the primary; after a failover, the new one."
    return RedisUnavailable("role", detail=f"{masked(settings.redis_url)}: {detail}", hint=hint)


def of_cluster(answer: str = "") -> ConfigurationError:
    """Return the error for a node of a Redis Cluster, which may have given that answer."""
    return ConfigurationError(f"{CLUSTER_NODE}{answer and f', and answers: {answer}'}", hint=NO_CLUSTER)


def of_sentinel() -> ConfigurationError:
    """Return the error for a Redis Sentinel."""
    return ConfigurationError(SENTINEL, hint=NO_SENTINEL)


def is_sentinel(info: object) -> bool:
    """Return whether a server's reply to INFO is that of a Redis Sentinel."""
    return isinstance(info, bytes) and re.search(rb"(?:redis|server)_mode:sentinel", info) is not None


def answer_of(error: Exception) -> str:
    """Return an error reply in full, with its first word."""
    code = code_of(error)
    return f"{code} {str(error).removeprefix(code).strip()}"


def refusal(error: Exception, redis_key: str) -> StateCacheError:
    """Return the error for an error reply about that Redis key."""
    text, code = str(error), code_of(error)
    if code in CLUSTER and code not in AGAIN:
        return of_cluster(answer_of(error))
    if code in ("NOPERM", "WRONGTYPE") or any(words in text for words in _RIGHTS) or lacking_command(text):
        return found_at(redis_key, f"{code} {text.removeprefix(code).strip()}")
    if code == "OOM":
        return RedisUnavailable("memory", detail=f"Redis is out of memory: {text}")
    reason = "role" if code in DEMOTED else "busy" if code == "BUSY" else "refused"
    return RedisUnavailable(reason, detail=f"{redis_key}: {code}: {text.removeprefix(code).strip()}")
