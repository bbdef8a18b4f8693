# Generated from statecache/_async/gate.py by tests/unasync.py. Do not edit.

"""Opening a shard's epoch: look, claim, raise the row, validate, open.

What is decided stands in `epochs`; here it is carried out. Each step is safe to die after: the claim expires and
keeps what the next claimer needs, a raised row only makes the next epoch higher, and nothing is written to the shard
until the last script, which checks the claim and the server once more.

The row in Postgres is raised by compare-and-set on what was read before the claim, so of several openers one wins;
only whoever's own bump succeeded opens, everybody else looks again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import errors as pg

from statecache._bridge import sleep
from statecache._sync.rescue import Branch, read_branch, record_branch
from statecache.clock import monotonic
from statecache.epochs import Authority, Look, Opening, Refusal, Row, common_point, decide
from statecache.errors import ConfigurationError, Unavailable
from statecache.keys import HASH
from statecache.lua import script
from statecache.settings import masked
from statecache.sql import statement

if TYPE_CHECKING:
    from statecache._sync.connect import Link
    from statecache.keys import KeySpace
    from statecache.settings import Settings

_KEYS_PER_DROP = 500
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """This reports an opening: the new epoch, its start, stale states dropped, changes set aside as conflicts."""

    shard: int
    epoch: int
    start_n: int
    dropped: int
    conflicts: int


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """This is what was read of a shard before the claim."""

    row: Row
    look: Look
    head: tuple[int, int, int] | None
    opening: Opening


class Gate:
    """This opens shards on the word of `authority`: a client, a worker, or an operator."""

    def __init__(
        self,
        settings: Settings,
        keys: KeySpace,
        *,
        by: str,
        authority: Authority,
        new_token: Callable[[], str] = lambda: secrets.token_hex(12),
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._by = by
        self._authority: Authority = authority
        self._new_token = new_token
        self._seconds = settings.timeout_s
        self._cluster = ""

    def open(self, link: Link, connection: psycopg.Connection[Any], shards: Sequence[int]) -> list[Opened]:
        """This opens those of the shards whose gate is closed and gives what it opened; open ones are left alone.

        Raises Unavailable(reason="epoch") when one of them may not be opened by this authority, or not in time; the
        others are open then all the same.
        """
        if not self._cluster:
            self._cluster = self._fetch(connection, "cluster", {})[0][0]
        token = self._new_token()
        end = monotonic() + 3 * self._settings.claim_s
        opened: list[Opened] = []
        final: dict[int, Refusal] = {}
        waiting, pause = list(shards), 0.01
        while True:
            seen, refused = self._look(link, connection, waiting, token)
            if seen:
                opened += self._open_seen(link, connection, seen, token)
            final.update((shard, refusal) for shard, refusal in refused.items() if not refusal.wait)
            waiting = sorted({one.row.shard for one in seen} | refused.keys() - final.keys())
            if not waiting and final:
                self._refuse(final)
            if not waiting:
                return opened
            if monotonic() > end:
                self._refuse(refused or {shard: Refusal(why="others keep opening it") for shard in waiting})
            if not seen:
                sleep(pause)
                pause = min(pause * 2, 0.25)

    def _refuse(self, refused: dict[int, Refusal]) -> None:
        shard, refusal = next(iter(refused.items()))
        where = f"{masked(self._settings.redis_url)} and {masked(self._settings.postgres_url)}"
        raise Unavailable("epoch", detail=f"{len(refused)} closed shards, {shard} first, at {where}: {refusal.why}")

    def _look(
        self, link: Link, connection: psycopg.Connection[Any], shards: Sequence[int], token: str
    ) -> tuple[list[_Seen], dict[int, Refusal]]:
        rows = self._rows(connection, shards)
        calls = [([self._keys.meta(row.shard), self._keys.changes(row.shard)], [self._settings.fence]) for row in rows]
        replies = link.scripts(script("gate_look"), calls, seconds=self._seconds)
        seen: list[_Seen] = []
        refused: dict[int, Refusal] = {}
        for row, reply in zip(rows, replies, strict=True):
            look, head = _parse_look(reply, token)
            verdict = decide(row, look, self._authority)
            if isinstance(verdict, Refusal):
                refused[row.shard] = verdict
            elif verdict is not None:
                seen.append(_Seen(row=row, look=look, head=head, opening=verdict))
        return seen, refused

    def _rows(self, connection: psycopg.Connection[Any], shards: Sequence[int]) -> list[Row]:
        rows = self._fetch(connection, "shards", {"shards": list(shards)})
        if len(rows) != len(set(shards)):
            raise ConfigurationError("Postgres has no row for some shards", hint="Run `statecache migrate`.")
        return [
            Row(shard=shard, epoch=epoch, replid=replid, flushed=flushed, entries=entries, bytes=size)
            for shard, epoch, replid, flushed, entries, size in rows
        ]

    def _open_seen(
        self, link: Link, connection: psycopg.Connection[Any], seen: list[_Seen], token: str
    ) -> list[Opened]:
        claimed = self._claim(link, seen, token)
        opened: list[Opened] = []
        for wait in (False, True):
            for one, raised in self._raise(connection, claimed, wait=wait):
                result = self._validate_and_open(link, connection, one, raised, token)
                claimed.remove(one)
                if result is not None:
                    opened.append(result)
            if not claimed:
                break
        return opened

    def _claim(self, link: Link, seen: list[_Seen], token: str) -> list[_Seen]:
        until_ms = round(self._settings.claim_s * 1000)
        calls: list[tuple[list[str], list[Any]]] = [
            (
                [self._keys.meta(one.row.shard)],
                [
                    token,
                    until_ms,
                    "" if one.look.epoch is None else one.look.epoch,
                    one.look.replid,
                    one.look.server,
                    self._settings.fence,
                    one.look.claim,
                ],
            )
            for one in seen
        ]
        replies = link.scripts(script("gate_claim"), calls, seconds=self._seconds)
        return [one for one, reply in zip(seen, replies, strict=True) if reply == 1]

    def _raise(
        self, connection: psycopg.Connection[Any], claimed: list[_Seen], *, wait: bool
    ) -> list[tuple[_Seen, tuple[int, ...]]]:
        """This bumps the rows that are as they were read; free rows first, then those that somebody holds."""
        raised: list[tuple[_Seen, tuple[int, ...]]] = []
        for server in sorted({one.look.server for one in claimed}):
            group = sorted((one for one in claimed if one.look.server == server), key=lambda one: one.row.shard)
            parameters = {
                "shards": [one.row.shard for one in group],
                "epochs": [one.row.epoch for one in group],
                "replids": [one.row.replid for one in group],
                "seen": [one.opening.seen for one in group],
                "last": [one.opening.last for one in group],
                "replid": server,
                "by": self._by,
                "wait": wait,
            }
            try:
                rows = self._fetch(connection, "begin_epoch", parameters)
            except pg.LockNotAvailable:
                continue
            by_shard = {row[0]: row for row in rows}
            raised += [(one, by_shard[one.row.shard]) for one in group if one.row.shard in by_shard]
        return raised

    def _validate_and_open(
        self,
        link: Link,
        connection: psycopg.Connection[Any],
        one: _Seen,
        raised: tuple[int, ...],
        token: str,
    ) -> Opened | None:
        shard, epoch, start_n, flushed, entries, size, excepted = raised
        later = self._fetch(
            connection, "later_starts", {"shard": shard, "epoch": one.look.epoch or 0, "opening": epoch}
        )
        common = common_point(one.look, [row[0] for row in later])
        stale: set[str] = set()
        branch = Branch()
        if common is not None:
            rows = self._fetch(connection, "keys_beyond", {"shard": shard, "n": common})
            stale = {row[0] for row in rows}
            if one.look.last[1] > common:
                branch = read_branch(link, self._keys, shard, common, flushed, seconds=self._seconds)
                record_branch(connection, self._settings.postgres_schema, shard, branch)
        dropped = self._drop(link, shard, sorted(stale | branch.keys), branch, token)
        if dropped is None:
            return None
        head = branch.head if branch.found else one.head
        totals = (head[1], head[2]) if head is not None and head[0] > flushed else (entries, size)
        if not self._finish(link, one, token, (epoch, start_n, *totals, flushed, entries, size, excepted), branch):
            return None
        return Opened(shard=shard, epoch=epoch, start_n=start_n, dropped=dropped, conflicts=len(branch.changes))

    def _drop(self, link: Link, shard: int, stale: list[str], branch: Branch, token: str) -> int | None:
        """This deletes stale states and entries under the claim; None where the claim was lost."""
        fixed = [self._keys.meta(shard), self._keys.unflushed(shard), self._keys.changes(shard)]
        dropped = 0
        for start in range(0, max(len(stale), 1), _KEYS_PER_DROP):
            some = stale[start : start + _KEYS_PER_DROP]
            entries = branch.entry_ids if start == 0 else []
            reply = link.script(
                script("gate_drop"),
                [*fixed, *(self._keys.state(key) for key in some)],
                [token, len(some), *some, *entries],
                seconds=self._seconds,
            )
            if reply < 0:
                return None
            dropped += reply
        return dropped

    def _finish(self, link: Link, one: _Seen, token: str, numbers: tuple[int, ...], branch: Branch) -> bool:
        keys, shard = self._keys, one.row.shard
        pin = [keys.shards, HASH, keys.prefix, self._settings.postgres_schema, self._cluster]
        reply = link.script(
            script("gate_open"),
            [keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard)],
            [token, one.look.server, self._settings.fence, *numbers, *pin, *branch.unflushed],
            seconds=self._seconds,
        )
        return bool(reply == 1)

    def _fetch(
        self, connection: psycopg.Connection[Any], name: str, parameters: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            cursor = connection.execute(statement(name, self._settings.postgres_schema), parameters)
            return cursor.fetchall()


def _parse_look(reply: Sequence[bytes], token: str) -> tuple[Look, tuple[int, int, int] | None]:
    epoch, replid, claimed, claim, left, last, server, role, n, entries, size = (part.decode() for part in reply)
    last_epoch, _, last_n = last.partition("-")
    look = Look(
        epoch=int(epoch) if epoch else None,
        replid=replid,
        claimed=tuple(claimed.split()),
        claim=claim,
        claim_left_ms=0 if claim == token else int(left),
        last=(int(last_epoch), int(last_n)),
        server=server,
        role=role,
    )
    return look, (int(n), int(entries or 0), int(size or 0)) if n else None
