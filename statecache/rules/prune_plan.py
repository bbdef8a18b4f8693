"""Letting values go without breaking what stays: decided for one run of a key's changes.

A run is a keyframe and the deltas behind it, in order. Of a run some versions may go, as the policy says; what is
pinned, or what a branch began with, stays. Where the version goes that a kept delta builds on, the delta becomes a
keyframe of its own, made from its value; deltas behind it keep their bytes and begin there. A run that is damaged is
left alone, all of it.

The newest run of a key is never touched, for the flusher may be writing a delta on it right now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from statecache.history import Damage, is_delta, kept_alone, unpacked


class Held(NamedTuple):
    """One version of a run, without its value: whether that is a delta, or gone, and how many bytes are kept of it."""

    version: int
    delta: bool
    gone: bool
    bytes: int
    keyframe: int | None


class Plan(NamedTuple):
    """What becomes of a run: which versions go, which become keyframes, and where others are to begin."""

    goes: list[int]
    keyframes: list[int]
    moved: dict[int, int]

    @property
    def rewrites(self) -> bool:
        """Whether anything is kept that changes."""
        return bool(self.keyframes or self.moved)


class Content(NamedTuple):
    """What is kept of one version's value."""

    version: int
    value: bytes | None
    packed: bytes | None
    keyframe: int | None
    digest: bytes | None


class Rewrite(NamedTuple):
    """How a version is kept from now on: not at all, by itself, or as before, but read from another keyframe on."""

    version: int
    how: Literal["gone", "alone", "moved"]
    value: bytes | None = None
    packed: bytes | None = None
    keyframe: int | None = None


def plan(run: Sequence[Held], lets_go: Collection[int]) -> Plan:
    """Decide what becomes of a run of which these versions may go."""
    goes: list[int] = []
    keyframes: list[int] = []
    moved: dict[int, int] = {}
    base, before = 0, 0
    for one in run:
        if one.gone:
            continue
        if one.version in lets_go:
            goes.append(one.version)
            continue
        if not one.delta:
            base = one.version
        elif before != one.version - 1:
            keyframes.append(one.version)
            base = one.version
        elif one.keyframe != base:
            moved[one.version] = base
        before = one.version
    return Plan(goes, keyframes, moved)


def rewritten(run: Iterable[Content], plan: Plan, origin: bytes | None) -> list[Rewrite]:
    """Return how the versions of a run are kept from now on that change; raise Damage where it is not whole.

    `origin` is what its keyframe is a delta to, where a branch began with it. Without rewrites no content is needed.
    """
    keyframes = set(plan.keyframes)
    rewrites = [Rewrite(version, "gone") for version in plan.goes]
    rewrites += [Rewrite(version, "moved", keyframe=keyframe) for version, keyframe in plan.moved.items()]
    for version, value in _values(run, origin):
        if version in keyframes:
            keyframes.discard(version)
            rewrites.append(Rewrite(version, "alone", *kept_alone(value)))
    if keyframes:
        raise Damage(f"version {min(keyframes)} is not there")
    return rewrites


def prove(run: Iterable[Content], kept: Collection[int], origin: bytes | None) -> None:
    """Raise Damage unless each of these versions is read from its keyframe on, and comes to its digest."""
    left = set(kept)
    for version, _ in _values(run, origin):
        left.discard(version)
    if left:
        raise Damage(f"version {min(left)} is not there")


def _values(run: Iterable[Content], origin: bytes | None) -> Iterator[tuple[int, bytes]]:
    """Yield the versions of a run whose values are kept, and these; raise Damage where one is not as it should be."""
    value: bytes | None = None
    base, before = 0, 0
    for one in run:
        if one.value is None and one.packed is None:
            continue
        delta = is_delta(one.packed)
        if one.value is not None:
            value = one.value
        else:
            parent = (value if before == one.version - 1 else None) if delta else origin
            value = unpacked(one.packed or b"", parent)
        if not delta:
            base = one.version
        elif one.keyframe != base:
            raise Damage(f"reading version {one.version} begins at version {one.keyframe}, its keyframe is {base}")
        if one.digest is None or sha256(value).digest() != one.digest:
            raise Damage(f"the value of version {one.version} is not what its digest says")
        before = one.version
        yield one.version, value
