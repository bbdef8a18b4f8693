"""Why a connection to Redis could not be opened: what redis-py and the system say, in the words of our errors."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    ResponseError,
)

from statecache._tls import is_closed_by_peer, is_tls_refused, tls_file_trouble
from statecache.concurrency import TooLittleTime
from statecache.errors import ConfigurationError, RedisUnavailable
from statecache.redis_errors import NO_SENTINEL, of_cluster
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.settings import Settings

CHECK_TLS = "Check redis_ca_file, redis_certificate_file, redis_key_file, and the server's name in redis_url."
_ASYNCIO = re.compile(r"(Err(?:or|no) (\d+)\b[^()]*?)Connect call failed")
"""What asyncio says in the place of the system's reason."""
_ECHO = re.compile(r",? with args beginning with:?.*", re.DOTALL)
"""What a server tells of a command that it does not know: of AUTH and of HELLO, the password."""
_CREDENTIALS = "Check user and password."
_REPLACED = "The file could be used when the client was made: where it is being replaced, that passes by itself."
_UP = "Is the server up, the URL right?"
_MUTE = "A server without TLS leaves rediss:// unanswered."
_PLAIN, _PERHAPS_TLS = "redis://", "The port may speak TLS: then the URL begins with rediss://."


def not_opened(error: Exception, settings: Settings) -> RedisUnavailable | ConfigurationError:
    """Return the error for a connection that failed with this one, TimeoutError included."""
    where = masked(settings.redis_url)
    if isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError)):
        return RedisUnavailable("authentication", detail=f"{where}: {error}", hint=_CREDENTIALS)
    if isinstance(error, BusyLoadingError):
        return RedisUnavailable("loading", detail=f"{where}: {error}")
    if isinstance(error, ResponseError):
        if (wrong := _no_database(error, where)) is not None:
            return wrong
        said = _ECHO.sub("", str(error))
        error.args = (said,)  # whoever shows an error shows its cause
        refused = "WRONGPASS" in said or "NOAUTH" in said or "password" in said
        reason, hint = ("authentication", _CREDENTIALS) if refused else ("connect", "")
        return RedisUnavailable(reason, detail=f"{where}: {said}", hint=hint)
    over_tls = settings.redis_url.startswith("rediss://")
    if over_tls and (trouble := tls_file_trouble(settings)):
        return RedisUnavailable("tls" if is_tls_refused(error) else "connect", detail=trouble, hint=_REPLACED)
    mute = f" {_MUTE}" if over_tls and "imeout" in type(error).__name__ else ""
    perhaps = f" {perhaps_tls(where)}" if is_closed_by_peer(error) and perhaps_tls(where) else ""
    reason, hint = ("tls", CHECK_TLS) if is_tls_refused(error) else ("connect", _UP + mute + perhaps)
    hint = error.hint if isinstance(error, TooLittleTime) else hint
    return RedisUnavailable(reason, detail=f"{where}: {_system_reason(error)}", hint=hint)


def is_refused(error: RedisUnavailable) -> bool:
    """Return whether the other side has answered, and not as a server that opens a connection.

    Where a server has a password, one without HELLO answers that there was no AUTH.
    """
    said = error.__cause__
    in_resp2 = "Invalid RESP version" in str(said)
    return error.reason == "authentication" or (
        error.reason == "connect" and (isinstance(said, ResponseError) or in_resp2)
    )


def hung_up(said: Exception, closed: RedisUnavailable, settings: Settings) -> RedisUnavailable:
    """Return the error for a server that said so and closed the connection, as one in protected mode does.

    A sentinel that has a password says of most commands that it lacks them, of the others that it wants the password.
    """
    if closed.reason == "authentication":
        return closed
    return RedisUnavailable(closed.reason, detail=f"{masked(settings.redis_url)}: {said}")


def perhaps_tls(where: str) -> str:
    """Return the hint for a server that closes a connection at once; '' where the URL asks for TLS already."""
    return _PERHAPS_TLS if where.startswith(_PLAIN) else ""


def _no_database(error: ResponseError, where: str) -> ConfigurationError | None:
    """Return the error for a server that does not have the URL's database, or None where it said something else."""
    text = str(error)
    if "SELECT is not allowed in cluster mode" in text:
        return of_cluster(text)
    if "unknown command 'SELECT'" in text:
        return ConfigurationError(f"redis_url {where}: it has no databases, as a Redis Sentinel", hint=NO_SENTINEL)
    hint = "Name a database that this server has: most have those from 0 to 15."
    is_none = "DB index" in text or "not an integer or out of range" in text
    return ConfigurationError(f"redis_url {where}: {text}", hint=hint) if is_none else None


def _system_reason(error: Exception) -> str:
    """Return the text of a failed connect with the system's reason, as the synchronous client's has it."""
    return _ASYNCIO.sub(lambda found: found[1] + os.strerror(int(found[2])), str(error))
