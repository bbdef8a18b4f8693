"""Which errors of TLS are final: those that no repetition changes."""

from __future__ import annotations

import ssl

import pytest
import redis

from statecache._tls import is_tls_refused


def _wrapped(error: BaseException) -> BaseException:
    """Return the error that redis-py raises while it handles that one."""
    try:
        try:
            raise error
        except BaseException:
            raise redis.ConnectionError("Error 8 connecting to somewhere. [SSL: …]")  # noqa: B904  (as redis-py does)
    except redis.ConnectionError as outer:
        return outer


def _because(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLEOFError(8, "[SSL: UNEXPECTED_EOF_WHILE_READING]"),
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"),
        ssl.SSLSyscallError(5, "Some I/O error occurred"),
        ConnectionResetError(104, "SSL: reset"),
        TimeoutError("_ssl.c:989: The handshake operation timed out"),
        _because("TLSV1_ALERT_INTERNAL_ERROR"),
    ],
)
def test_what_ends_a_connection_passes(error: BaseException) -> None:
    assert not is_tls_refused(error)
    assert not is_tls_refused(_wrapped(error))


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]"),
        _because("WRONG_VERSION_NUMBER"),
        _because("NO_CERTIFICATE_OR_CRL_FOUND"),
        _because("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
    ],
)
def test_what_is_refused_is_final(error: BaseException) -> None:
    assert is_tls_refused(error)
    assert is_tls_refused(_wrapped(error))


def test_an_error_of_redis_alone_is_not_of_tls() -> None:
    assert not is_tls_refused(redis.ConnectionError("Connection closed by server, which speaks of SSL."))
