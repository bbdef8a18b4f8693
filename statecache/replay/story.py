"""The story of one run: how its chain of changes went on over every kill, as the audit read it from Postgres.

Pure. A chain is told in stretches: versions that one writer committed in one epoch. A new writer is the agent's next
life, a new epoch a Redis that was started again.
"""

from __future__ import annotations

from itertools import groupby

import msgspec

from statecache.replay.audit import AuditRow, Evidence
from statecache.replay.runs import key_of


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a chain: the versions from `first` to `last`, which one writer committed in one epoch."""

    first: int
    last: int
    epoch: int
    writer: str


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A run's story; `resumed` counts the later lives of its agent that went on with it."""

    run: str
    key: str
    resumed: int
    stretches: tuple[Stretch, ...]


def story(one: Evidence) -> Story:
    """Return the story that a run's rows tell."""
    writers = {row.writer for row in one.rows}
    resumed = max(0, len(writers) - 1)
    return Story(run=one.run.id, key=key_of(one.run.id), resumed=resumed, stretches=_stretches(one))


def _stretches(one: Evidence) -> tuple[Stretch, ...]:
    found = []
    for (writer, epoch), rows in groupby(one.rows, key=_hand):
        versions = [row.version for row in rows]
        found.append(Stretch(first=versions[0], last=versions[-1], epoch=epoch, writer=writer))
    return tuple(found)


def _hand(row: AuditRow) -> tuple[str, int]:
    return row.writer, row.epoch


def richer(one: Story | None, other: Story) -> Story:
    """Return the story that tells more: resumed more often, else in more stretches; of two alike the first."""
    if one is None or (other.resumed, len(other.stretches)) > (one.resumed, len(one.stretches)):
        return other
    return one
