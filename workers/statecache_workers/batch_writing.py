"""How a batch is written into Postgres: judged, spelled as columns, counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache.history import Parent
from statecache.model import Position, Token
from statecache.rules.pins import Pin
from statecache.rules.reconcile import Fate, Fork, Judgement, Tip, judge
from statecache_workers.database import Call, Transaction
from statecache_workers.history_writing import KeptChange, NoValues, Values, kept_changes
from statecache_workers.origins import Link, link_call, linked
from statecache_workers.postgres_arrays import (
    blobs,
    integers,
    optional_blobs,
    optional_integers,
    texts,
    times,
    truths,
)
from statecache_workers.postgres_errors import Poison

if TYPE_CHECKING:
    from statecache.model import ChangeSet
    from statecache_workers.slices import Slice

_NOWHERE = Fate("nowhere")
NO_VALUES = NoValues()


class Raw(NamedTuple):
    """An entry that is to be parked, what can be told of it, and why; `forked` says that it would have forked."""

    position: Position
    fields: Sequence[bytes]
    change_id: str
    keys: Sequence[str]
    error: Poison
    forked: bool = False


class WriteResult(msgspec.Struct, kw_only=True):
    """What became of a shard's entries; `hashed` says that each change that was applied has its hash."""

    tips: dict[str, Tip] = {}
    parents: dict[str, Parent] = {}
    forked: list[Fork] = []
    excepted: int = 0
    parked: list[Raw] = []
    hashed: bool = True

    @classmethod
    def of(cls, verdict: Judged) -> WriteResult:
        """Return what became of entries that were judged and written."""
        judgement = verdict.judgement
        return cls(
            tips=judgement.tips, parents=verdict.parents, forked=judgement.forked, excepted=judgement.excepted,
            hashed=verdict.hashed,
        )  # fmt: skip


class Judged(NamedTuple):
    """What is to be written of one shard, and the newest tokens of its locks as Postgres had them.

    `kept` has a row for each change that is applied; `parents` are the newest values of their keys. `pins` are of
    checkpoints that may name values which stand in states alone. `links` say which of the changes were made from those
    of other keys.
    """

    shard: int
    judgement: Judgement
    tokens: Mapping[str, Token]
    kept: list[KeptChange]
    parents: dict[str, Parent]
    pins: list[Pin]
    links: list[Link]

    @property
    def hashed(self) -> bool:
        """Whether each change that is applied has its hash."""
        return all(row.hash is not None for row in self.kept)


class Mark(NamedTuple):
    """A shard's new watermark; `hashed` says that each change up to it, from the last one on, has its hash."""

    shard: int
    flushed: int
    entries: int
    bytes: int
    excepted: int
    hashed: bool = True


async def judged(
    transaction: Transaction,
    shard: int,
    change_sets: Sequence[ChangeSet],
    tips: Mapping[str, Tip],
    values: Values = NO_VALUES,
    latest: Collection[str] = (),
) -> Judged:
    """Decide on a shard's change-sets; ask Postgres what became of other changes where that matters.

    `values` are the newest ones of keys, where they are remembered. `latest` are the namespaces of whose
    history only the latest values are kept.
    """
    fates: dict[tuple[str, str], Fate] = {}
    tokens: dict[str, Token] = {}
    if locks := sorted({lock for one in change_sets for lock, _ in one.tokens}):
        (rows,) = await transaction.run(Call("lock_tokens", {"keys": texts(locks)}))
        tokens = {key: Token(epoch, count) for key, epoch, count in rows}
    while True:
        judgement = judge(change_sets, tips, fates, tokens)
        if not judgement.asked:
            kept, parents, pins = kept_changes(shard, judgement, tips, values, latest)
            links = await linked(transaction, judgement.applied, kept)
            return Judged(shard, judgement, tokens, kept, parents, pins, links)
        keys, change_ids = zip(*judgement.asked, strict=True)
        (rows,) = await transaction.run(Call("flush_fates", {"keys": texts(keys), "change_ids": texts(change_ids)}))
        fates |= dict.fromkeys(judgement.asked, _NOWHERE)
        for key, change_id, version, forked in rows:
            if version is not None:
                fates[key, change_id] = Fate("applied", version)
            elif forked:
                fates[key, change_id] = Fate("forked")


def writes(judgements: Sequence[Judged]) -> list[Call]:
    """Return the calls that write changes, tips, conflicts and tokens; they raise where Postgres does not take all."""
    applied = [one for one in judgements if one.judgement.applied]
    changes = [_changes(applied)] if applied else []
    links = [link for one in judgements for link in one.links]
    return (
        _pinned(judgements)
        + changes
        + ([link_call(links)] if links else [])
        + _tokens(judgements)
        + [call for one in judgements for call in _conflicts(one.shard, one.judgement.forked)]
    )


def _pinned(judgements: Sequence[Judged]) -> list[Call]:
    pins = [pin for one in judgements for pin in one.pins]
    return [keep_tips([pin.key for pin in pins], [pin.whole for pin in pins])] if pins else []


def keep_tips(keys: Sequence[str], whole: Sequence[bool]) -> Call:
    """Return the call that keeps the newest values of keys, or of whole groups, before their states go on."""
    return Call("keep_tips", {"keys": texts(keys), "whole": truths(whole)})


def watermarks(marks: Sequence[Mark], lease: Any) -> Call:
    """Return the call that moves shards' watermarks."""
    *columns, hashed = zip(*marks, strict=True)
    names = ("shards", "flushed", "entries", "bytes", "excepted")
    arrays = dict(zip(names, map(integers, columns), strict=True))
    return Call("flush_watermarks", arrays | {"hashed": truths(hashed), "lease": lease})


def mark_of(one: Slice, outcome: WriteResult) -> Mark:
    """Return the shard's new watermark; a gap counts as excepted, for what was in it may be lost: waiters must ask."""
    torn = one.end.n if one.cut == "gap" else 0
    excepted = max(one.holding.row.excepted, outcome.excepted, torn)
    return Mark(one.shard, one.end.n, one.end.entries, one.end.bytes, excepted, outcome.hashed)


def _changes(applied: Sequence[Judged]) -> Call:
    rows = [row for one in applied for row in one.judgement.applied]
    changes = [row.change for row in rows]
    sets = [row.change_set for row in rows]
    shards: list[int] = []
    for one in applied:
        shards += [one.shard] * len(one.judgement.applied)
    last = [False] * len(rows)
    for at in {change.key: at for at, change in enumerate(changes)}.values():
        last[at] = True
    kept = [row.kept for one in applied for row in one.kept]
    stored = [row.stored for one in applied for row in one.kept]
    return Call("flush_changes", _columns(changes, sets) | {
        "shard": integers(shards),
        "gap": truths([row.gap for row in rows]),
        "last": truths(last),
        "stored": truths(stored),
        "value": optional_blobs([
            change.value if newest or (whole and how.packed is None) else None
            for change, newest, how, whole in zip(changes, last, kept, stored, strict=True)
        ]),
        "packed": optional_blobs([one.packed for one in kept]),
        "keyframe": optional_integers([one.keyframe for one in kept]),
        "size": integers([len(change.value) for change in changes]),
        "digest": blobs([one.digest for one in kept]),
        "hash": optional_blobs([row.hash for one in applied for row in one.kept]),
    })  # fmt: skip


def _tokens(judgements: Sequence[Judged]) -> list[Call]:
    newer = {
        lock: token
        for one in judgements
        for lock, token in one.judgement.tokens.items()
        if one.tokens.get(lock) != token
    }
    if not newer:
        return []
    locks = sorted(newer)
    return [Call("flush_tokens", {
        "keys": texts(locks),
        "epochs": integers([newer[lock].epoch for lock in locks]),
        "counts": integers([newer[lock].count for lock in locks]),
    })]  # fmt: skip


def _conflicts(shard: int, forked: Sequence[Fork]) -> list[Call]:
    calls = []
    for cause in sorted({fork.cause for fork in forked}):
        some = [fork for fork in forked if fork.cause == cause]
        changes = [fork.change for fork in some]
        columns = _columns(changes, [fork.change_set for fork in some])
        values = {"value": blobs([one.value for one in changes])}
        calls.append(Call("record_conflicts", columns | values | {"shard": shard, "cause": cause}))
    return calls


def _columns(changes: Sequence[Any], sets: Sequence[ChangeSet]) -> dict[str, Any]:
    return {
        "key": texts([one.key for one in changes]),
        "version": integers([one.version for one in changes]),
        "change_id": texts([one.change_id for one in changes]),
        "parent_change_id": texts([one.parent_change_id for one in changes]),
        "epoch": integers([one.position.epoch for one in sets]),
        "n": integers([one.position.n for one in sets]),
        "op": texts([one.op for one in changes]),
        "encoding": texts([one.encoding for one in changes]),
        "schema": texts([one.schema for one in changes]),
        "writer": texts([one.writer for one in sets]),
        "actor": texts([one.actor for one in sets]),
        "reason": texts([one.reason for one in sets]),
        "at": times([one.at for one in sets]),
    }
