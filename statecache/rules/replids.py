"""How a Redis server is named in epochs, and to an operator: by its replication id, or `off` where the fence is off."""

from __future__ import annotations

from collections.abc import Iterable

UNFENCED = "off"
"""Stands in place of a replid where the fence is off."""


def adopt_options(given_up: Iterable[str], server: str) -> str:
    """Return how `statecache epoch adopt` is told that a server takes the place of those that are given up.

    One that does not show its replid cannot be told from others: the URL alone names it.
    """
    meant = [] if server in ("", UNFENCED) else [f"--to {server}"]
    return " ".join([*(f"--from {replid}" for replid in given_up), *meant])
