"""`statecache epoch claim`: opening shards on an operator's word."""

from __future__ import annotations

from collections.abc import Sequence

from statecache._async.connect import AsyncLink, dialer
from statecache._async.gate import Gate, Opened
from statecache._async.postgres import PostgresTier
from statecache.errors import UsageError
from statecache.keys import KeySpace
from statecache.settings import Settings


def numbers(words: Sequence[str], shards: int) -> list[int]:
    """This reads shard numbers, or `all`."""
    if list(words) == ["all"]:
        return list(range(shards))
    found = []
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) < shards):
            raise UsageError(f"{word!r} is not a shard", hint=f"Give numbers from 0 to {shards - 1}, or all.")
        found.append(int(word))
    return sorted(set(found))


async def claim(settings: Settings, shards: Sequence[int], *, by: str) -> list[Opened]:
    """This opens the shards whose gates are closed, and gives what it opened.

    The connection is not greeted first: the pin in a Redis that has to be claimed may be another lineage's.
    """
    keys = KeySpace(settings.prefix, settings.shards)
    session = await PostgresTier(settings, keys).session()
    try:
        link = await AsyncLink.open(dialer(settings), settings)
        try:
            gate = Gate(settings, keys, by=by, authority="operator")
            return await gate.open(link, session.connection, shards)
        finally:
            await link.close()
    finally:
        await session.close()
