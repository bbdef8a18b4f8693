"""Where keys came from and what was made of them, as Postgres has it: what is not flushed yet is not among it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from statecache.changes import Branch
from statecache.clock import monotonic
from statecache.errors import LimitExceeded
from statecache.history_errors import VersionNotFound
from statecache.keys import beyond_prefix
from statecache.rules.ancestry import Link, Restore, Span
from statecache.rules.provenance import provenance_of

if TYPE_CHECKING:
    from statecache.core.postgres.tier import PostgresTier

LINKS_MAX = 10_000
"""How many branches and merges are read at once."""
RESTORES_MAX = 100_000
"""How many undos, redos and rollbacks are read for one merge."""


class Branches:
    """The branches and merges that Postgres knows of."""

    def __init__(self, postgres: PostgresTier) -> None:
        self._postgres = postgres

    async def above(self, keys: Sequence[str], *, end: float) -> list[Branch]:
        """Return what keys were made from, and that, and so on, the newest first."""
        asked = {"keys": [*keys], "limit": LINKS_MAX + 1}
        rows = await self._postgres.fetch("ancestry", asked, seconds=max(end - monotonic(), 0.001))
        return await self._read(rows, keys[0], end)

    async def restores(self, links: Sequence[Link], *, end: float) -> list[Restore]:
        """Return the undos, redos and rollbacks of keys behind their first merge, which may have taken merges back."""
        firsts: dict[str, int] = {}
        for link in links:
            if not link.begins:
                firsts[link.key] = min(link.version, firsts.get(link.key, link.version))
        if not firsts:
            return []
        asked = {"keys": [*firsts], "firsts": [*firsts.values()], "limit": RESTORES_MAX + 1}
        rows = await self._postgres.fetch("restores", asked, seconds=max(end - monotonic(), 0.001))
        if len(rows) > RESTORES_MAX:
            raise LimitExceeded(
                "the number of undos, redos and rollbacks behind a merge", actual=len(rows), limit=RESTORES_MAX,
                key=links[0].key,
            )  # fmt: skip
        found, positions = dict[tuple[str, int], int](), dict[tuple[str, int], int]()
        for key, version, reason in rows:
            said = provenance_of(reason)
            if said is not None and said.kind in ("undo", "redo", "rollback"):
                found[key, version] = said.version or 0
                if said.position is not None:
                    positions[key, version] = said.position.n
        if positions:
            asked = {"keys": [key for key, _ in positions], "ns": [*positions.values()]}
            places = [*positions]
            for which, version, _ in await self._postgres.fetch(
                "origins_now", asked, seconds=max(end - monotonic(), 0.001)
            ):
                found[places[which - 1]] = version
        return [Restore(key, version, to) for (key, version), to in found.items()]

    async def refuse_missing(self, spans: Sequence[Span], *, end: float) -> None:
        """Raise VersionNotFound where versions are missing of which one may have been a merge."""
        asked = {
            "keys": [one.key for one in spans], "firsts": [one.first for one in spans],
            "lasts": [one.last for one in spans],
        }  # fmt: skip
        rows = await self._postgres.fetch("history_missing", asked, seconds=max(end - monotonic(), 0.001))
        for key, first, last, missing in rows:
            why = f"{missing} of its versions {first} to {last} are missing, and may have been merges"
            raise VersionNotFound(key, wanted="version to merge from", reason=why)

    async def below(self, key: str, *, whole: bool, end: float) -> list[Branch]:
        """Return what was made of a key, or of all keys of a group, in the order of their versions."""
        asked = {"key": key, "whole": whole, "beyond": beyond_prefix(key + "/"), "limit": LINKS_MAX + 1}
        rows = await self._postgres.fetch("branches", asked, seconds=max(end - monotonic(), 0.001))
        return await self._read(rows, key, end)

    async def _read(self, rows: Sequence[Sequence[Any]], key: str, end: float) -> list[Branch]:
        """Read rows of branches; where an origin was not known to be there, look for it again."""
        if len(rows) > LINKS_MAX:
            raise LimitExceeded("the number of branches", actual=len(rows), limit=LINKS_MAX, key=key)
        found, unknown = [_branch(*row[:-1]) for row in rows], dict[int, int]()
        for at, row in enumerate(rows):
            said = provenance_of(row[9]) if row[10] else None
            if said is not None and said.position is not None:
                unknown[at] = said.position.n
        if unknown:
            asked = {"keys": [found[at].origin for at in unknown], "ns": [*unknown.values()]}
            there = await self._postgres.fetch("origins_now", asked, seconds=max(end - monotonic(), 0.001))
            places = [*unknown]
            for which, version, change_id in there:
                at = places[which - 1]
                found[at] = replace(found[at], origin_version=version, origin_change_id=change_id)
        return found


def link_of(branch: Branch) -> Link:
    """Return what the rules of ancestry know of a branch or a merge."""
    return Link(branch.key, branch.version, branch.origin, branch.origin_version, branch.kind == "branch", branch.at)


def _branch(
    key: str, version: int, change_id: str, origin: str, origin_version: int, origin_change_id: str, at: Any,
    writer: str, actor: str, reason: str,
) -> Branch:  # fmt: skip
    said = provenance_of(reason)
    return Branch(
        kind="merge" if said is not None and said.kind == "merge" else "branch", key=key, version=version,
        change_id=change_id, origin=origin, origin_version=origin_version, origin_change_id=origin_change_id, at=at,
        writer=writer, actor=actor, reason=reason if said is None else said.reason,
    )  # fmt: skip
