"""A checkpoint as it is stored: a state of its own, at `<key>/checkpoints/<label>`, or at that of the group.

    JSON    label, scope, key; of a key the version and change_id that were current at the checkpoint's position;
            metadata of whoever made it; what it was made with; schema and SHA-256 of the value
    point   the position, where it is not the checkpoint's own: it was renamed, filled in, or brought back by an undo.
            Without a version, a checkpoint of a key names whatever version was current there

The commit that creates it compares the key's state, so what it says of that was true at its position. A group is one
shard, whose positions order all of its changes: the position alone is one consistent point of all its keys. Labels are
unique because a state is created once; retention keeps what live checkpoints name.

The schema marks these states among others: typed views pass over them, and no class of a user has a name like it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from statecache.checkpoint_policy import CheckpointPolicy
from statecache.checkpoints import Checkpoint, MadeBy, Scope
from statecache.codec import codec_for
from statecache.errors import LimitExceeded, UsageError
from statecache.model import Position

CHECKPOINT_SCHEMA = "statecache/checkpoint@1"
"""What marks checkpoints among other states."""
LABEL_BYTES_MAX = 128
METADATA_BYTES_MAX = 64 * 1024
_SEGMENT = "/checkpoints/"


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of a checkpoint."""

    label: str
    scope: Scope
    key: str
    made_by: MadeBy
    created_at: datetime
    writer: str
    version: int | None = None
    change_id: str = ""
    schema: str = ""
    sha256: str = ""
    point: str | None = None
    metadata: Any = None
    automatic: bool = False

    def shown(self, position: Position, *, pinned: bool = True) -> Checkpoint:
        """Return the checkpoint as users get it; `position` is that of the commit that wrote the record."""
        return Checkpoint(
            key=self.key, label=self.label, scope=self.scope, version=self.version, change_id=self.change_id,
            position=Position.parse(self.point or "") or position, created_at=self.created_at, writer=self.writer,
            metadata=self.metadata, schema=self.schema, sha256=self.sha256, made_by=self.made_by,
            automatic=self.automatic, pinned=pinned,
        )  # fmt: skip


encoded = msgspec.json.Encoder().encode
"""Spell a record as it is stored."""
decoded = msgspec.json.Decoder(CheckpointRecord).decode
"""Read a stored record; raise msgspec.DecodeError for what is none."""


def written_again(value: bytes, position: Position) -> bytes:
    """Return a record as another commit may write it again: it names the position at which it was written before."""
    try:
        said = decoded(value)
    except msgspec.DecodeError:
        return value
    return value if said.point else encoded(msgspec.structs.replace(said, point=str(position)))


def record_key(key: str, label: str) -> str:
    """Return the key of a checkpoint of a key, or of a group."""
    return key + _SEGMENT + label


def records_under(key: str) -> str:
    """Return the prefix of the checkpoints of a key, or of a group."""
    return key + _SEGMENT


def checked_label(label: object) -> str:
    """Return a label unchanged, or raise UsageError."""
    reason = "it is not text"
    if isinstance(label, str):
        try:
            size = len(label.encode())
        except UnicodeEncodeError:
            size, reason = 0, "it holds a lone surrogate"
        else:
            reason = "it is empty" if not size else f"it has {size} UTF-8 bytes, more than {LABEL_BYTES_MAX}"
        if 0 < size <= LABEL_BYTES_MAX:
            if "/" not in label and "\0" not in label:
                return label
            reason = "it holds a NUL" if "\0" in label else "it holds a '/'"
    shown = repr(label) if len(repr(label)) <= 80 else f"{repr(label)[:79]}…"
    raise UsageError(f"label={shown} cannot be one: {reason}", hint="A label is one segment of a key, as a name is.")


def checked_metadata(metadata: Any, *, key: str) -> Any:
    """Return metadata as plain data; raise CodecError for what is no JSON, LimitExceeded for too much of it."""
    if metadata is None:
        return None
    codec = codec_for(Any, "json")
    data, _ = codec.encode(metadata, key=key, bytes_max=2**31)
    if len(data) > METADATA_BYTES_MAX:
        what, hint = "the checkpoint's metadata in bytes", "Keep it in a state of its own, and its key in the metadata."
        raise LimitExceeded(what, actual=len(data), limit=METADATA_BYTES_MAX, key=key, hint=hint)
    return codec.decode(data, key=key)


def automatic_label(at: datetime, chance: str, *, why: str = "") -> str:
    """Return a name for a checkpoint that was given none: such names sort by time, and `chance` parts them."""
    return f"{at:%Y%m%dT%H%M%S.%f}Z-{why}{'-' if why else ''}{chance}"


def checked_checkpoint_policy(policy: CheckpointPolicy) -> CheckpointPolicy:
    """Return a namespace's policy unchanged, or raise UsageError."""
    if not isinstance(policy, CheckpointPolicy):
        raise UsageError(
            f"checkpoint={policy!r} is no CheckpointPolicy", hint="Say CheckpointPolicy(every_changes=100)."
        )
    return policy
