"""Is history what it says of itself? Every rollback, undo, redo, branch and checkpoint, held against the chains.

A plain editor with two stacks says where each undo and redo had to lead. A rollback and a branch hold what was at the
version that they name; a group that went back is what it was, but for keys that others created meanwhile by commits of
such keys alone. What a checkpoint names was current at its position.
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
        *(wrong for chain in chains.values() for wrong in _walks(chain)),
        *_copies(chains, links),
        *_groups(chains),
        *_marks(chains, marks),
    ]


def _walks(chain: Sequence[Change]) -> Iterator[str]:
    """Compare a key's undos and redos with an editor's; where a part of the chain is lost, nobody knows."""
    shown: int | None = None
    undos: list[int] = []
    redos: list[int] = []
    for row in chain:
        said = row.said
        if row.gap:
            return
        if said is None or said.kind not in ("undo", "redo") or said.version is None:
            undos += [] if shown is None else [shown]
            shown, redos = row.version, []
            continue
        taken, given = (undos, redos) if said.kind == "undo" else (redos, undos)
        wanted = taken.pop() if taken else None
        if wanted != said.version or shown is None:
            yield f"{row.key}: version {row.version} says {row.reason!r}, and an editor would go to {wanted}"
            return
        given.append(shown)
        shown = wanted


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


def _groups(chains: Chains) -> Iterator[str]:
    """Compare groups that went back with what they were."""
    commits: dict[str, list[Change]] = {}
    for row in (row for chain in chains.values() for row in chain):
        commits.setdefault(row.change_id, []).append(row)
    for rows in commits.values():
        said = rows[0].said
        if said is None or said.kind != "rollback" or said.position is None:
            continue
        group = group_of(rows[0].key)
        keys = [key for key in chains if group_of(key) == group and "/checkpoints/" not in key]
        left = [now for key in keys if (now := _left(chains[key], rows[0], said.position)) is not None]
        others = {now.key for now in left}
        for now in left:
            if any(one.key not in others for one in commits[now.change_id]):
                yield f"{group}: {rows[0].reason!r} at {rows[0].n}, and version {now.version} of {now.key} is there"


def _left(chain: Sequence[Change], made: Change, back_to: Position) -> Change | None:
    """Return what stood at a key when its group had gone back, if that is not what stood there then."""
    now = next((one for one in reversed(chain) if one.n <= made.n), None)
    then = next((one for one in reversed(chain) if one.n <= back_to.n), None)
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
        then = next((one for one in reversed(chains.get(mark.key, ())) if one.n <= place), None)
        named = (mark.version, mark.change_id, mark.sha256)
        found = None if then is None else (then.version, then.change_id, then.digest.hex())
        if found != named:
            yield f"{key}: it names {named}, and at {place} there was {found}"
