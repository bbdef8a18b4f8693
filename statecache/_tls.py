"""TLS: whether its files can be used, and whether an error of it can pass by itself.

An end of the connection passes, a refused certificate does not.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from redis.connection import parse_url
from redis.exceptions import RedisError

from statecache.errors import ConfigurationError
from statecache.settings import Settings, process_environment, variable_of

FILES = {
    "ssl_ca_certs": "redis_ca_file",
    "ssl_certfile": "redis_certificate_file",
    "ssl_keyfile": "redis_key_file",
}
"""redis-py's options that name a file, and the settings that give them."""

NO_FILES = {variable_of(setting): "" for setting in FILES.values()}
"""The variables that leave the files out, for servers of one's own, which speak no TLS."""

_PASSING = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)
_PASSING_REASONS = ("TLSV1_ALERT_INTERNAL_ERROR", "TLSV1_ALERT_USER_CANCELLED", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
"""OpenSSL's names for what a server says that is just starting or stopping, for which there is no exception class."""
_REPLACED = ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_OR_CRL_FOUND", "PEM lib")
"""What it says of this side's files, which could be used when the client was made: somebody is replacing them."""

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


def files_without_tls(url: str, options: Sequence[str]) -> ConfigurationError:
    """Return the error for files of those options beside a masked URL that is without TLS: nothing would use them."""
    names = [FILES[option] for option in options]
    hint = f"Begin the URL with rediss://, or leave out {', '.join(names)} ({', '.join(map(variable_of, names))})."
    return ConfigurationError(f"redis_url {url} is without TLS, so nothing would use {', '.join(names)}", hint=hint)


def check_tls_files(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where the files among redis-py's options cannot be used, or do not belong together.

    redis-py would open them at each connection, and say that the server is missing, or refused.
    """
    for option, setting in FILES.items():
        if path := options.get(option):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise ConfigurationError(f"{setting} {path}: {error.strerror}") from error
    authority, certificate, key = (options.get(option) for option in FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if key and not certificate:
        raise ConfigurationError(f"redis_key_file {key}: there is no certificate", hint="Give redis_certificate_file.")
    try:
        if authority:
            context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise ConfigurationError(f"redis_ca_file {authority}: it holds no certificate ({_said(error)})") from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password=lambda: options.get("ssl_password") or "")
    except ssl.SSLError as error:
        pair = f"redis_certificate_file {certificate} with redis_key_file {key or certificate}"
        hint = "The certificate must be the key's, and a key that is encrypted has its ssl_password in redis_url."
        raise ConfigurationError(f"{pair}: they cannot be used together ({_said(error)})", hint=hint) from error


def tls_options(settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a URL that begins with rediss://, with the files that the settings name."""
    files = {option: path for option, setting in FILES.items() if (path := getattr(settings, setting))}
    return {"ssl_password": ""} | dict(options) | files  # without a password OpenSSL asks the terminal for one


def tls_file_trouble(settings: Settings) -> str:
    """Return what is wrong with a file that could be used when the client was made; '' where nothing is."""
    options: Any = parse_url(settings.redis_url)  # type: ignore[no-untyped-call]
    try:
        check_tls_files(tls_options(settings, options))
    except ConfigurationError as error:
        return error.reason
    return ""


class KeptContext:
    """The TLS context of one client's connections, which redis-py's asynchronous ones would make anew, each its own.

    To read the system's authorities takes 30 to 50 ms, in which the event loop stands still. The context is made anew
    where a file that it was made of is another one now, so that a certificate can be replaced under a running client.
    What a folder of authorities holds does not show in the folder: where one is named, each connection has its own.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        system, given = ssl.get_default_verify_paths(), process_environment()
        trusted = [
            given.get(system.openssl_cafile_env, system.openssl_cafile),
            given.get(system.openssl_capath_env, system.openssl_capath),
        ]
        self._in_folder = bool(options.get("ssl_ca_path"))
        self._paths = [path for path in map(options.get, FILES) if path]
        self._paths += [path for paths in trusted for path in paths.split(os.pathsep) if path]
        self._kept: Any = None
        self._made_of: list[tuple[int, ...]] = []

    def shared_by(self, connection: Any) -> Any:
        """Return a connection that is not open yet, and that uses the context if it has one beside it."""
        its_own = getattr(connection, "ssl_context", None)
        if its_own is not None and not self._in_folder:
            now = list(map(_stamp, self._paths))
            if self._kept is None or now != self._made_of:  # looked at first: it is made when a connection is opened
                self._kept, self._made_of = its_own, now
            connection.ssl_context = self._kept
        return connection


def _stamp(path: str) -> tuple[int, ...]:
    """Return numbers that change where a file is written or replaced, whatever time it is given."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _said(error: ssl.SSLError) -> str:
    return str(error.reason or error).replace("_", " ").lower()


def is_tls_refused(error: BaseException) -> bool:
    """Return whether an error of redis-py comes from TLS that one of the sides refuses, now and later.

    A certificate, a name, a version, a file that cannot be used, or a server that speaks no TLS: no repetition changes
    that. redis-py raises errors of its own while it handles those of the socket.
    """
    origin = _origin(error)
    if not isinstance(origin, ssl.SSLError) or isinstance(origin, _PASSING):
        return False
    return getattr(origin, "reason", None) not in _PASSING_REASONS and not any(one in str(origin) for one in _REPLACED)


def is_closed_by_peer(error: BaseException) -> bool:
    """Return whether an error of redis-py says that the other side reset or closed the connection.

    So does a port that speaks TLS alone with one that does not begin with TLS.
    """
    closed = isinstance(error, RedisError) and "Connection closed by server" in str(error)
    return closed or isinstance(_origin(error), ConnectionResetError | BrokenPipeError)


def _origin(error: BaseException) -> BaseException | None:
    """Return what redis-py raised its own error for, or the error itself where it is no such one."""
    origin: BaseException | None = error
    while isinstance(origin, RedisError):
        origin = origin.__cause__ or (None if origin.__suppress_context__ else origin.__context__)
    return origin


def is_tls_refused_by_libpq(text: str) -> bool:
    """Return whether libpq's message about a connection says the same; names in it, which are quoted, say nothing."""
    said = " ".join(text.split('"')[::2])
    return any(words in said for words in _SAID_BY_LIBPQ)
