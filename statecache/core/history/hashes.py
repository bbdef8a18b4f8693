"""Comparing what a row says of a change with its hash, when that change is read: see `statecache.history.link`.

The hash is over that of the change before it, or over b''. Where the change before it is not there, or is blank for an
erasure, it is not known over which: then nothing is compared, nor where a change of an earlier release has none yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statecache.history import link
from statecache.history_errors import HistoryDamaged
from statecache.model import ChangeRecord, ChangeSet
from statecache.rules.versions import Version, version_of_row


def proven_version(row: Sequence[Any]) -> Version:
    """Read a row of `history_at`; raise HistoryDamaged where its hash does not fit what it says."""
    version, (said, before) = version_of_row(row), row[20:22]
    if said is None:
        return version
    if version.digest is None:
        raise HistoryDamaged(version.key, version.version, reason="its digest is missing")
    known = [b"", *([] if before is None else [bytes(before)])]
    if all(_hash(one, version, version.digest) != bytes(said) for one in known):
        if before is None and version.version > 1:
            return version
        reason = "its hash does not fit what it says, or the hash before it"
        raise HistoryDamaged(version.key, version.version, reason=reason)
    return version


def _hash(before: bytes, one: Version, digest: bytes) -> bytes:
    change = ChangeRecord(
        change_id=one.change_id, key=one.key, op=one.op, version=one.version, parent_change_id=one.parent_change_id,
        value=b"", encoding=one.encoding, schema=one.schema,
    )  # fmt: skip
    commit = ChangeSet(
        position=one.position, change_id=one.change_id, at=one.at, writer=one.writer, actor=one.actor,
        reason=one.reason, entries=0, bytes=0, changes=(change,),
    )  # fmt: skip
    return link(before, change, commit, digest)
