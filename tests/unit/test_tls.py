"""Which errors of TLS are final: those that no repetition changes."""

from __future__ import annotations

import ssl

import pytest
import redis

from statecache._tls import is_closed_by_peer, is_tls_refused, is_tls_refused_by_libpq


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
        _because("KEY_VALUES_MISMATCH"),
        _because("NO_CERTIFICATE_OR_CRL_FOUND"),
        ssl.SSLError(1, "[SSL] PEM lib (_ssl.c:3905)"),
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
        _because("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
    ],
)
def test_what_is_refused_is_final(error: BaseException) -> None:
    assert is_tls_refused(error)
    assert is_tls_refused(_wrapped(error))


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), BrokenPipeError(32, "broken pipe")])
def test_what_a_port_for_tls_does_to_a_plain_connection(error: BaseException) -> None:
    assert is_closed_by_peer(_wrapped(error))
    assert is_closed_by_peer(redis.ConnectionError("Connection closed by server."))


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), TimeoutError("no answer"), OSError(113, "no")]
)
def test_what_it_does_not_do(error: BaseException) -> None:
    assert not is_closed_by_peer(_wrapped(error))
    assert not is_closed_by_peer(redis.ResponseError("LOADING"))


def test_an_error_of_redis_alone_is_not_of_tls() -> None:
    assert not is_tls_refused(redis.ConnectionError("Connection closed by server, which speaks of SSL."))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("SSL error: certificate verify failed", True),
        ('server certificate for "server" does not match host name "127.0.0.1"', True),
        ("server does not support SSL, but SSL was required", True),
        ('could not read root certificate file "/ca.key": no certificate or crl found', True),
        ("SSL error: tlsv1 alert unknown ca", True),
        ("SSL error: wrong version number", True),
        ("SSL error: unexpected eof while reading", False),
        ("SSL SYSCALL error: EOF detected", False),
        ("SSL SYSCALL error: Connection reset by peer", False),
        ("Connection refused", False),
    ],
)
def test_what_libpq_says_of_tls(text: str, refused: bool) -> None:
    where = 'connection failed: connection to server at "certificate.example" (192.0.2.1), port 5432 failed: '
    assert is_tls_refused_by_libpq(where + text) is refused
