"""What Postgres' chains make of changes that arrive in their shard's order: decided from values alone.

A key's chain has one **tip**: version, change_id. A change continues it if it names the tip as its parent and counts
one further. Everything else is one of these:

    repeat    the same change_id at the same version is in the chain: nothing to do
    gap       it is further on than the next version, and its parent is nowhere (lost), or the tip was quarantined:
              applied, with the gap recorded, for the lineage goes on even where its record is torn
    fork      it does not continue the tip: its version is taken (`behind`: a broken `assume_new`, an old server), or
              its parent shares a version with the tip (`sibling`), or its parent forked (`descendant`)

A commit that was made under a lease has its fencing token with it. Of each lock Postgres keeps the newest token that it
has seen: what comes with an older one was written by a holder that had lost the lock to another, and forks
(`stale_token`), unless it is a repeat. What has no token says nothing about locks.

Descendants of a fork are the fork: were they taken in as soon as their versions pass the tip's, the fork would
overtake the truth. A change-set is applied or forked as a whole; states that would have continued their tips fork with
the others (`companion`). A fork that Postgres refuses for its data is parked, and is a fork all the same.

Whether a parent forked, or a taken version is a repeat, may need a look into Postgres. `judge` names what it would
have to know in `asked`; whoever calls it finds out and calls again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from statecache.model import ChangeRecord, ChangeSet, Token


class Tip(NamedTuple):
    """The end of a key's chain in Postgres; `broken` where that end is parked in quarantine.

    `hash` is that of its change (see `history`), None where it was not reckoned.
    """

    version: int
    change_id: str
    broken: bool = False
    hash: bytes | None = b""


NOTHING = Tip(0, "")
"""The tip of a key that Postgres has never seen."""


class Fate(NamedTuple):
    """What became of a change: in the chain at `version`, set aside as a conflict, or nowhere to be found."""

    kind: Literal["applied", "forked", "nowhere"]
    version: int = 0


class Applied(NamedTuple):
    """A change that goes into the chain; `gap` where its parent is not in it."""

    change_set: ChangeSet
    change: ChangeRecord
    gap: bool


class Fork(NamedTuple):
    """A change that is set aside as a conflict."""

    change_set: ChangeSet
    change: ChangeRecord
    cause: str


class Judgement(msgspec.Struct, kw_only=True):
    """What is to be written; valid only where nothing is `asked`.

    `tips` are the new tips of the keys in `applied`, `tokens` the newest of the locks that it was told. `excepted` is
    the n of the newest change-set that forked.
    """

    applied: list[Applied] = []
    forked: list[Fork] = []
    tips: dict[str, Tip] = {}
    tokens: dict[str, Token] = {}
    repeated: int = 0
    excepted: int = 0
    asked: set[tuple[str, str]] = set()


Fates = Mapping[tuple[str, str], Fate]
"""What is known of changes, by (key, change_id)."""


def judge(
    change_sets: Sequence[ChangeSet], tips: Mapping[str, Tip], fates: Fates, tokens: Mapping[str, Token] | None = None
) -> Judgement:
    """Decide on change-sets of one shard in its order.

    `tips` holds the tip of each of their keys, `tokens` the newest token of each of their locks that has one.
    """
    verdict = Judgement(tokens=dict(tokens or {}))
    new, applied = verdict.tips, verdict.applied
    forks: set[tuple[str, str]] = set()
    for change_set in change_sets:
        if len(change_set.changes) == 1 and not change_set.tokens:
            change = change_set.changes[0]
            tip = new.get(change.key) or tips[change.key]
            if change.parent_change_id == tip.change_id and change.version == tip.version + 1:
                applied.append(Applied(change_set, change, tip.broken))
                new[change.key] = Tip(change.version, change.change_id)
                continue
        _judge_whole(change_set, tips, fates, forks, verdict)
    return verdict


def _judge_whole(
    change_set: ChangeSet, tips: Mapping[str, Tip], fates: Fates, forks: set[tuple[str, str]], verdict: Judgement
) -> None:
    """Decide on one change-set in full."""
    new = dict[str, Tip]()
    applied: list[Applied] = []
    causes: list[tuple[ChangeRecord, str]] = []
    forked = False
    stale = any(token < verdict.tokens.get(lock, token) for lock, token in change_set.tokens)
    for change in change_set.changes:
        key = change.key
        tip = new.get(key) or verdict.tips.get(key) or tips[key]
        ruling = _rule(change, tip, fates, forks, verdict.asked)
        if ruling == "repeat":
            verdict.repeated += 1
        elif stale and ruling in ("next", "gap"):
            forked = True
            causes.append((change, "stale_token"))
        elif ruling in ("next", "gap"):
            applied.append(Applied(change_set, change, ruling == "gap"))
            causes.append((change, "companion"))
            new[key] = Tip(change.version, change.change_id)
        else:
            forked = True
            causes.append((change, ruling))
    if not forked:
        verdict.applied += applied
        verdict.tips.update(new)
        if not stale:
            verdict.tokens.update(change_set.tokens)
        return
    verdict.excepted = change_set.position.n
    for change, cause in causes:
        forks.add((change.key, change.change_id))
        verdict.forked.append(Fork(change_set, change, cause))


def _rule(
    change: ChangeRecord, tip: Tip, fates: Fates, forks: set[tuple[str, str]], asked: set[tuple[str, str]]
) -> Literal["next", "gap", "repeat", "behind", "sibling", "descendant"]:
    """Decide on one change; where more must be known, note it in `asked` and take the likeliest meanwhile."""
    key, parent = change.key, change.parent_change_id
    if change.version <= tip.version:
        if change.change_id == tip.change_id and change.version == tip.version:
            return "repeat"
        fate = _fate(key, change.change_id, fates, asked)
        return "repeat" if fate == ("applied", change.version) else "behind"
    if parent == tip.change_id:
        return "gap" if tip.broken or change.version > tip.version + 1 else "next"
    if (key, parent) in forks:
        return "descendant"
    if change.version == tip.version + 1:
        return "sibling"
    kind = _fate(key, parent, fates, asked).kind
    if kind == "forked":
        return "descendant"
    return "sibling" if kind == "applied" else "gap"


def _fate(key: str, change_id: str, fates: Fates, asked: set[tuple[str, str]]) -> Fate:
    fate = fates.get((key, change_id))
    if fate is None:
        asked.add((key, change_id))
        return Fate("nowhere")
    return fate
