"""An agent of some release: which one, says PYTHONPATH. It sets, updates or gets one typed value and tells of it.

    python releases_agent.py set|update|get KEY

The type that updates lacks a field of the one that sets. Nothing but the public API is used, so that every release can.
"""

from __future__ import annotations

import sys

import msgspec

from statecache import StateCache
from statecache.errors import StateCacheError


class Old(msgspec.Struct, frozen=True):
    """A value as the release before knows it."""

    by: str


class New(msgspec.Struct, frozen=True):
    """The same with one field more."""

    by: str
    extra: str = ""


def main(what: str, key: str) -> None:
    """Do it, and print what came of it."""
    with StateCache() as cache:
        try:
            if what == "set":
                told: object = cache.set(key, New(by="typed", extra="extra"), durability="postgres").change_id
            elif what == "update":
                told = cache.update(key, lambda old: Old(by=f"{old.by} again"), type=Old).change_id
            else:
                told = cache.get(key)
        except StateCacheError as error:
            told = f"refused: {error}"
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
