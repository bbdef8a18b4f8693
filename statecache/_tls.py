"""Whether an error of TLS can pass by itself: an end of the connection does, a refused certificate does not."""

from __future__ import annotations

import ssl

from redis.exceptions import RedisError

_PASSING = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)
_PASSING_REASONS = ("TLSV1_ALERT_INTERNAL_ERROR", "TLSV1_ALERT_USER_CANCELLED", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
"""OpenSSL's names for what a server says that is just starting or stopping, for which there is no exception class."""

_SAID_BY_LIBPQ = (
    "certificate",
    "private key file",
    "does not support SSL",
    "wrong version number",
    "unsupported protocol",
    "alert protocol version",
    "alert handshake failure",
    "alert unknown ca",
)
"""libpq has one class of error for all that hinders a connection."""


def is_tls_refused(error: BaseException) -> bool:
    """Return whether an error of redis-py comes from TLS that one of the sides refuses, now and later.

    A certificate, a name, a version, a file that cannot be used, or a server that speaks no TLS: no repetition changes
    that. redis-py raises errors of its own while it handles those of the socket.
    """
    origin: BaseException | None = error
    while isinstance(origin, RedisError):
        origin = origin.__cause__ or (None if origin.__suppress_context__ else origin.__context__)
    if not isinstance(origin, ssl.SSLError) or isinstance(origin, _PASSING):
        return False
    return getattr(origin, "reason", None) not in _PASSING_REASONS


def is_tls_refused_by_libpq(text: str) -> bool:
    """Return whether libpq's message about a connection says the same; names in it, which are quoted, say nothing."""
    said = " ".join(text.split('"')[::2])
    return any(words in said for words in _SAID_BY_LIBPQ)
