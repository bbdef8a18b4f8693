"""Connecting to one of several addresses of Postgres: a URL may name hosts, and a host have addresses.

They are tried one after the other, as libpq does it. Each has its share of the time that is left, so that one which
takes a connection and never answers leaves some for those behind it; what an earlier one did not need is theirs. Libpq
allows no address less than two seconds: of many silent ones the last may come after the end. A `connect_timeout` in the
URL is the most that each may take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_attempts, conninfo_attempts_async, conninfo_to_dict, timeout_from_conninfo

from statecache.clock import monotonic

T = TypeVar("T")
CONNECT_S_MIN = 2
"""The least connect timeout that libpq allows, in seconds."""


async def task_reached(connect: Callable[..., Awaitable[T]], url: str, options: dict[str, Any]) -> T:
    """Return the connection that the first address gives; `connect_timeout` of the options is for all of them."""
    given = conninfo_to_dict(url)
    addresses = Addresses(await conninfo_attempts_async(given), given, options)
    for one in addresses:
        with addresses.tried(one):
            return await connect(**one)
    raise addresses.refused()


def thread_reached(connect: Callable[..., T], url: str, options: dict[str, Any]) -> T:
    """Return the connection that the first address gives; `connect_timeout` of the options is for all of them."""
    given = conninfo_to_dict(url)
    addresses = Addresses(conninfo_attempts(given), given, options)
    for one in addresses:
        with addresses.tried(one):
            return connect(**one)
    raise addresses.refused()


class Addresses:
    """What to connect to, one after the other, with the options that psycopg takes, and what each of them said."""

    def __init__(self, found: Sequence[dict[str, Any]], given: dict[str, Any], options: dict[str, Any]) -> None:
        self._found = found
        self._options = options
        self._each_s = timeout_from_conninfo(given) if "connect_timeout" in given else options["connect_timeout"]
        self._errors: list[tuple[psycopg.Error, str]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        end = monotonic() + self._options["connect_timeout"]
        for at, one in enumerate(self._found):
            share = round((end - monotonic()) / (len(self._found) - at))
            yield one | self._options | {"connect_timeout": max(CONNECT_S_MIN, min(share, self._each_s))}

    @contextmanager
    def tried(self, one: dict[str, Any]) -> Iterator[None]:
        """Note what an address said that let nobody in."""
        try:
            yield
        except psycopg.Error as error:
            where = ", ".join(f"{name}: {one[name]!r}" for name in ("host", "port", "hostaddr") if name in one)
            self._errors.append((error, where))

    def refused(self) -> psycopg.Error:
        """Return the error of the last one, and with several the words of all."""
        errors, self._errors = self._errors, []  # an error refers to the frame that raises it, which refers to this
        last, _ = errors[-1]
        if len(errors) == 1:
            return last.with_traceback(None)
        told = "\n".join(f"- {where}: {error}" for error, where in errors)
        return type(last)(f"{last}\nMultiple connection attempts failed. All failures were:\n{told}")
