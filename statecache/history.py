"""How values are kept in the history of their keys, decided and reckoned from bytes alone.

Each change of a key keeps its value in one of these forms:

    plain    the bytes as they are: small ones, and what does not compress
    whole    `w` and a zstd frame: a keyframe
    delta    `d` and a zstd frame whose dictionary is the value of the version before
    origin   `o` and a zstd frame whose dictionary is the value of the change that a branch began from
    nothing  a value that is no longer kept, and that of a delete

Plain and whole values, and origins, are keyframes: any version is read from its keyframe on, in one range of the index.
A delta is made only where the flusher holds the bytes of the parent, and the parent is in the chain. A new keyframe is
made where a delta stops paying, and where the chain is so long that its versions would take long to read.

`digest` is the SHA-256 of the value. `hash` links a change to the one before it: SHA-256 over that one's hash, what the
change says of itself, and its digest. It is b'' for what comes before a key's first change, and before one whose parent
is not in the chain, and before the delete that an erasure begins with. A change of before this was kept has no hash
until it is reckoned, and so have those behind it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from statecache.model import ChangeRecord, ChangeSet
from statecache.zstd import compressed, compressed_behind, decompressed, plain_frame

DELTAS_MAX, DELTAS_MIN = 64, 8
"""How many deltas follow a keyframe at most; and how many may, however large the values are."""
CHAIN_BYTES_MAX = 1536 * 1024
"""How many bytes of values are gone through at most to read one that is a later delta than that."""
PLAIN_BYTES_MAX = 96
"""Up to this many bytes a value is kept as it is."""
ERASED = "erased"
"""The reason of the delete that an erasure of a key begins with; another may follow behind a colon."""
_PAYS = 2
"""How many times smaller a delta has to be than what a keyframe would take, judged by the one that it builds on."""
_WHOLE, _DELTA, _ORIGIN = b"w", b"d", b"o"
_HEAD = struct.Struct("!B3Q9I")


class Parent(NamedTuple):
    """The newest value of a key's history, and how it is kept: what the next change may be a delta to."""

    change_id: str
    value: bytes
    keyframe: int
    deltas: int = 0
    """How many deltas lie between it and its keyframe."""
    chain_bytes: int = 0
    """How many bytes the values of these deltas have."""
    ratio: float = 1.0
    """What part of its value's bytes the keyframe takes."""


class Kept(NamedTuple):
    """How a change's value is kept: plain where `packed` is None; `keyframe` is None where reading begins with it."""

    packed: bytes | None
    keyframe: int | None
    digest: bytes


class Stored(NamedTuple):
    """A change's value as it was found: what is kept of it, where reading begins, and what it must come to."""

    version: int
    value: bytes | None
    packed: bytes | None
    keyframe: int | None
    digest: bytes | None


class Damage(ValueError):
    """Why a version cannot be read from what is kept of it."""


class NotKept(ValueError):
    """That the value of a version is no longer kept."""


def keep(change: ChangeRecord, parent: Parent | None) -> tuple[Kept, Parent]:
    """Decide how a change's value is kept, and return that and what the next change may build on.

    `parent` is the change before it, if that is in the chain and its bytes are at hand.
    """
    value, version = change.value, change.version
    digest, size = sha256(value).digest(), len(change.value)
    if size > PLAIN_BYTES_MAX:
        if parent is not None and _continues(parent, change):
            packed = delta(value, parent.value)
            if len(packed) * _PAYS <= size * parent.ratio:
                deltas, chain_bytes = parent.deltas + 1, parent.chain_bytes + size
                after = Parent(change.change_id, value, parent.keyframe, deltas, chain_bytes, parent.ratio)
                return Kept(packed, parent.keyframe, digest), after
        _, alone = kept_alone(value)
        if alone is not None:
            return Kept(alone, None, digest), Parent(change.change_id, value, version, ratio=len(alone) / size)
    return Kept(None, None, digest), Parent(change.change_id, value, version)


def _continues(parent: Parent, change: ChangeRecord) -> bool:
    """Whether a change may be a delta to that value: it is its parent, and the chain is not too long yet."""
    if parent.change_id != change.parent_change_id or parent.value == b"":
        return False
    return parent.deltas < (DELTAS_MAX if parent.chain_bytes < CHAIN_BYTES_MAX else DELTAS_MIN)


def kept_alone(value: bytes) -> tuple[bytes | None, bytes | None]:
    """Return how a value is kept that builds on nothing: plain, or else packed."""
    if len(value) > PLAIN_BYTES_MAX:
        packed = whole(value)
        if len(packed) * 10 <= len(value) * 9:
            return None, packed
    return value, None


def whole(value: bytes) -> bytes:
    """Return a value as a keyframe."""
    return _WHOLE + compressed(value)


def delta(value: bytes, parent: bytes, *, origin: bool = False) -> bytes:
    """Return what parts a value from that of the version before it, or from its origin in another key."""
    return (_ORIGIN if origin else _DELTA) + compressed_behind(parent, value)


def is_delta(packed: bytes | None) -> bool:
    """Whether a value is kept as a delta to that of the version before it."""
    return packed is not None and packed[:1] == _DELTA


def is_delta_to_origin(packed: bytes | None) -> bool:
    """Whether a value is kept as a delta to that from which its key began as a branch."""
    return packed is not None and packed[:1] == _ORIGIN


def needs_parent(packed: bytes) -> bool:
    """Whether a value is kept as a delta, to the version before it or to its origin in another key."""
    return packed[:1] != _WHOLE


def unpacked(packed: bytes, parent: bytes | None) -> bytes:
    """Return a value from its packed form; `parent` is what a delta is to. Raise Damage where that cannot be."""
    return _decompressed(_frames(packed, None if parent is None else [plain_frame(parent)]))


def _frames(packed: bytes, before: list[bytes] | None) -> list[bytes]:
    """Return the frames that a value comes from, one after the other; those `before` give what a delta is to."""
    form = packed[:1]
    if form == _WHOLE:
        return [packed[1:]]
    if form not in (_DELTA, _ORIGIN):
        raise Damage(f"its form is {form!r}")
    if before is None:
        raise Damage("what it is a delta to is missing")
    return [*before, packed[1:]]


def restored(chain: Iterable[Stored], *, origin: bytes | None = None, before: bytes | None = None) -> bytes:
    """Return the value of the last of these versions, which begin with its keyframe and are in order.

    They may also begin behind the version whose value is `before`. `origin` is what a keyframe is a delta to that a
    branch began with. Raise NotKept where the value is no longer kept, and Damage where what is kept does not give it.
    """
    frames = None if before is None else [plain_frame(before)]
    last: Stored | None = None
    for one in chain:
        if last is not None and one.version != last.version + 1 and one.keyframe not in (None, one.version):
            raise Damage(f"version {one.version - 1}, which it is a delta to, is missing")
        last = one
        if one.value is not None:
            frames = [plain_frame(one.value)]
        elif one.packed is None:
            frames = None
        elif is_delta(one.packed):
            frames = _frames(one.packed, frames)
        else:
            frames = _frames(one.packed, None if origin is None else [plain_frame(origin)])
    if last is None:
        raise Damage("it is missing")
    if frames is None:
        raise NotKept
    value = last.value if last.value is not None else _decompressed(frames)
    if last.digest is not None and sha256(value).digest() != last.digest:
        raise Damage("the value is not what its digest says")
    return value


def values_of(chain: Iterable[Stored], origins: Mapping[int, bytes | None] | None = None) -> list[bytes | None]:
    """Return the values of a key's successive changes; None for one that is damaged or no longer kept.

    `origins` are the values, by version, from which it began as a branch.
    """
    values: list[bytes | None] = []
    last: Stored | None = None
    for one in chain:
        before = values[-1] if last is not None and one.version == last.version + 1 else None
        try:
            values.append(restored([one], before=before, origin=(origins or {}).get(one.version)))
        except (Damage, NotKept):
            values.append(None)
        last = one
    return values


def link(before: bytes, change: ChangeRecord, commit: ChangeSet, digest: bytes) -> bytes:
    """Return the hash of a commit's change, from that of the change before it and the digest of its value."""
    said = (
        change.key, change.op, change.change_id, change.parent_change_id, change.encoding, change.schema,
        commit.writer, commit.actor, commit.reason,
    )  # fmt: skip
    return link_of(before, said, (change.version, *commit.position), digest)


def link_of(before: bytes, said: Sequence[str], numbers: tuple[int, int, int], digest: bytes) -> bytes:
    """Return the hash of a change that says these, in the order of `link`: its texts, version, epoch and n."""
    head = _HEAD.pack(len(before), *numbers, *map(len, said))
    return sha256(b"".join((head, before, "".join(said).encode(), digest))).digest()


def begins_anew(change_set: ChangeSet, change: ChangeRecord) -> bool:
    """Whether a change's hash begins anew although its parent is in the chain: with it an erasure of its key begins."""
    return change.op == "delete" and re.fullmatch(rf"{ERASED}(: .*)?", change_set.reason, re.DOTALL) is not None


def _decompressed(frames: list[bytes]) -> bytes:
    """Return what the last of these frames holds, of which each is a delta to what the one before holds."""
    try:
        return decompressed(frames)
    except ValueError as error:
        raise Damage(f"it does not decompress: {error}") from None
