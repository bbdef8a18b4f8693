"""Comparing what a row says of a change with its hash, when that change is read: see `statecache.history.link`.

The hash is over that of the change before it, or over b''. Where the change before it is not there, or is blank for an
erasure, it is not known over which: then nothing is compared, nor where a change of an earlier release has none yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statecache.history import link_of
from statecache.history_errors import HistoryDamaged
from statecache.rules.versions import Version, version_of_row


def proven_version(row: Sequence[Any], hashes: Sequence[Any]) -> Version:
    """Read a row of `history_at` or `history_versions` that comes with its hash and the one before.

    Raises HistoryDamaged where its hash does not fit what it says.
    """
    one = version_of_row(row)
    said = (
        one.key, one.op, one.change_id, one.parent_change_id, one.encoding, one.schema, one.writer, one.actor,
        one.reason,
    )  # fmt: skip
    if why := unfit(said, (one.version, *one.position), one.digest, *hashes):
        raise HistoryDamaged(one.key, one.version, reason=why)
    return one


def proven_by_key(rows: Sequence[Sequence[Any]]) -> dict[str, Version]:
    """Read rows of `history_at`, by key; raise HistoryDamaged for one that does not fit its hash."""
    return {row[17]: proven_version(row, row[20:22]) for row in rows if row[17] is not None and row[2] is not None}


def proven_until_damaged(rows: Sequence[Sequence[Any]]) -> tuple[list[Version], HistoryDamaged | None]:
    """Read rows of `history_versions` up to the first that does not fit its hash, and return why not."""
    versions: list[Version] = []
    for row in rows:
        try:
            versions.append(proven_version(row, row[18:20]))
        except HistoryDamaged as error:
            return versions, error
    return versions, None


def unfit(
    said: Sequence[str], numbers: tuple[int, int, int], digest: bytes | None, hashed: bytes | None, before: bytes | None
) -> str:
    """Return why a change does not fit its hash, given the one before it, or ''.

    `said` and `numbers` are what it says of itself, in the order of `statecache.history.link`.
    """
    if hashed is None:
        return ""
    if digest is None:
        return "its digest is missing"
    for known in (b"",) if before is None else (before, b""):
        if link_of(bytes(known), said, numbers, digest) == hashed:
            return ""
    if before is None and numbers[0] > 1:
        return ""
    return "its hash does not fit what it says, or the hash before it"
