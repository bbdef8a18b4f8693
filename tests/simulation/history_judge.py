"""Is history what it says of itself? Every rollback, undo, redo, branch and checkpoint, held against the chains.

A plain editor with two stacks says where each undo and redo had to lead. A rollback and a branch hold what was at the
version that they name; a group that went back is what it was, but for what others created meanwhile by commits of
nothing else. What a checkpoint names was current at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

import psycopg

from statecache.expiry import expires_at
from statecache.keys import group_of
from statecache.model import Position
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA, decoded
from statecache.rules.provenance import Provenance, provenance_of

UNSURE = timedelta(seconds=2)
"""How far a client may be from knowing whether a state has ended."""


class Change(NamedTuple):
    """One row of Postgres, without its value."""

    key: str
    version: int
    change_id: str
    n: int
    op: str
    digest: bytes
    taken_in: bool
    """Whether this release has taken it in, or packed it since."""
    reason: str
    gap: bool
    at: datetime
    ends: datetime | None

    @property
    def said(self) -> Provenance | None:
        return provenance_of(self.reason)

    @property
    def content(self) -> tuple[str, bytes]:
        return self.op, self.digest


Chains = Mapping[str, Sequence[Change]]


def judge_history(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Return what is wrong with what the chains say of where their changes came from, and with checkpoints."""
    query = (
        "SELECT key, version, change_id, n, op, digest, value, reason, gap, at, encoding"
        f" FROM {schema}.change ORDER BY key, version"
    )
    chains: dict[str, list[Change]] = {}
    for *row, encoding in connection.execute(query.encode()):
        key, version, change_id, n, op, digest, value, reason, gap, at = row
        held = bytes(digest) if digest is not None else sha256(value).digest()
        change = Change(key, version, change_id, n, op, held, digest is not None, reason, gap, at, expires_at(encoding))
        chains.setdefault(key, []).append(change)
    links = {
        (key, version): (origin, at)
        for key, version, origin, at in connection.execute(
            f"SELECT key, version, origin, origin_version FROM {schema}.branch".encode()
        )
    }
    marks = connection.execute(
        f"SELECT key, value, n FROM {schema}.state WHERE op = 'set' AND schema = %s".encode(), [CHECKPOINT_SCHEMA]
    ).fetchall()
    return [
        *(wrong for chain in chains.values() for wrong in judge_walks(chain)),
        *_copies(chains, links),
        *judge_groups(chains),
        *_marks(chains, marks),
    ]


def judge_walks(chain: Sequence[Change]) -> Iterator[str]:
    """Compare a key's undos and redos with an editor's; where a part of the chain is lost, nobody knows.

    Who finds nothing, for what was there has ended, goes past deletes: they would change nothing. A redo that does
    counts as one all the same.
    """
    shown: int | None = None
    undos: list[int] = []
    redos: list[int] = []
    deleted = {row.version for row in chain if row.op != "set"}
    for before, row in zip((None, *chain), chain, strict=False):
        said = row.said
        if row.gap:
            return
        if said is not None and said.kind == "expired":
            continue  # a worker's delete of what had ended is no edit
        if said is None or said.kind not in ("undo", "redo") or said.version is None:
            undos += [] if shown is None else [shown]
            shown, redos = row.version, []
            continue
        taken, given = (undos, redos) if said.kind == "undo" else (redos, undos)
        wanted, passed = taken.pop() if taken else None, 0
        while wanted in deleted and wanted != said.version and _may_be_gone(before, row.at):
            wanted, passed = taken.pop() if taken else None, passed + 1
        if wanted != said.version or shown is None:
            yield f"{row.key}: version {row.version} says {row.reason!r}, and an editor would go to {wanted}"
            return
        given.append(shown)
        shown = wanted
        redos += [wanted] * passed if said.kind == "redo" else []


def _copies(chains: Chains, links: Mapping[tuple[str, int], tuple[str, int]]) -> Iterator[str]:
    """Compare what goes back to one version, or begins with one, with that."""
    for row in (row for chain in chains.values() for row in chain):
        said = row.said
        if said is None or said.version is None or said.kind == "merge":
            continue
        origin = said.origin or row.key
        then = next((one for one in chains.get(origin, ()) if one.version == said.version), None)
        if then is None:
            yield f"{row.key}: version {row.version} says {row.reason!r}, which there is not"
        elif then.content != row.content:
            yield f"{row.key}: version {row.version} says {row.reason!r}, and holds something else"
        link = links.get((row.key, row.version))
        if row.taken_in and said.kind == "branch" and link != (origin, said.version):
            yield f"{row.key}: version {row.version} says {row.reason!r}, and is recorded as {link}"


def judge_groups(chains: Chains) -> Iterator[str]:
    """Compare groups that went back with what they were."""
    commits: dict[str, list[Change]] = {}
    for row in (row for chain in chains.values() for row in chain):
        commits.setdefault(row.change_id, []).append(row)
    for rows in commits.values():
        said = rows[0].said
        if said is None or said.kind != "rollback" or said.position is None:
            continue
        group = group_of(rows[0].key)
        own = {key: chain for key, chain in chains.items() if group_of(key) == group and "/checkpoints/" not in key}
        left = {key: now for key, chain in own.items() if (now := _left(chain, rows[0], said.position)) is not None}
        created = _created_meanwhile(own, rows[0], said.position) if left else set()
        for key in left.keys() - created:
            yield f"{group}: {rows[0].reason!r} at {rows[0].n}, and version {left[key].version} of {key} is there"


def _created_meanwhile(chains: Chains, made: Change, back_to: Position) -> set[str]:
    """Return which keys of a group may have been written between its being read and its going back.

    Nobody compares what was not there when the group was read, and had not been there then. So it was read before
    commits, up to this one, that wrote such keys alone.
    """
    between = sorted(
        (row for chain in chains.values() for row in chain if back_to.n < row.n < made.n), key=lambda row: -row.n
    )
    written: set[str] = set()
    created: set[str] = set()
    for at, row in enumerate(between):
        if not _may_be_gone(_newest(chains[row.key], back_to.n), made.at):
            break
        written.add(row.key)
        is_whole = at + 1 == len(between) or between[at + 1].n != row.n
        if is_whole and all(_may_be_gone(_newest(chains[key], row.n - 1), made.at) for key in written):
            created |= written
    return created


def _newest(chain: Sequence[Change], n: int) -> Change | None:
    """Return the newest change of a key up to n."""
    return next((one for one in reversed(chain) if one.n <= n), None)


def _may_be_gone(one: Change | None, at: datetime) -> bool:
    """Return whether a client may have found nothing there; what it read before that may have ended since."""
    return one is None or one.gap or one.op != "set" or (one.ends is not None and one.ends < at + UNSURE)


def _left(chain: Sequence[Change], made: Change, back_to: Position) -> Change | None:
    """Return what stood at a key when its group had gone back, if that is not what stood there then."""
    now, then = _newest(chain, made.n), _newest(chain, back_to.n)
    if now is None or any(one is not None and _is_unsure(one, made.at) for one in (now, then)):
        return None
    wanted = then.content if then is not None and _lives(then, made.at) else None
    return None if (now.content if _lives(now, made.at) else None) == wanted else now


def _lives(one: Change, at: datetime) -> bool:
    return one.op == "set" and (one.ends is None or one.ends > at)


def _is_unsure(one: Change, at: datetime) -> bool:
    return one.gap or (one.ends is not None and abs(one.ends - at) < UNSURE)


def _marks(chains: Chains, marks: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Compare what checkpoints of keys name with what was current at their positions."""
    for key, value, n in marks:
        mark = decoded(bytes(value))
        if mark.scope != "key" or mark.version is None:
            continue
        point = Position.parse(mark.point or "")
        place = n if point is None else point.n
        then = _newest(chains.get(mark.key, ()), place)
        named = (mark.version, mark.change_id, mark.sha256)
        found = None if then is None else (then.version, then.change_id, then.digest.hex())
        if found != named:
            yield f"{key}: it names {named}, and at {place} there was {found}"
