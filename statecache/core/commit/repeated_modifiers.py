"""What modifiers of a commit have made that was applied long ago, and what they had been given to make it of.

Their values are in no answer any more. The stream has them as long as it has their entries, and Postgres ever after.
Where the caller has named the change_id himself, it may be that of another modifier: so the change before is looked for
too, and the rules say what this modifier would have made of that. Where that change is nowhere, he is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statecache.errors import OutcomeUnknown
from statecache.expiry import form_of, until_of
from statecache.history_errors import VersionNotFound
from statecache.records import time_of
from statecache.rules.modifiers import Made

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Found
    from statecache.commit_protocol.commit import Commit
    from statecache.core.commit.durable import Durable
    from statecache.model import ChangeRecord

_GONE = "it is applied, and what it has made of that is kept no more"


async def remade(durable: Durable, commit: Commit, found: Found, *, end: float) -> Found:
    """Return what was found with what its modifiers made, and were given, where that has to be known.

    Where retention has let go what one of them made, raises VersionNotFound to whoever has named the change_id, else
    OutcomeUnknown, as ever after a lost answer.
    """
    made: dict[int, Made] = {}
    bases: dict[int, Made | None] = {}
    for at, write in enumerate(commit.written()):
        if write.modifier is None:
            continue
        change = found.changes[at] if found.changes else None
        change = change or await durable.change(commit.shard, commit.change_id, write.key, end=end)
        if change is None:
            if not commit.named:
                raise OutcomeUnknown(commit.change_id, keys=commit.keys, reason=_GONE)
            raise VersionNotFound(write.key, wanted=f"change {commit.change_id}", reason=_GONE)
        made[at] = Made(change.value, change.encoding, change.schema)
        if not commit.named:
            continue
        parent = found.parents[at]
        before = await durable.change(commit.shard, parent, write.key, end=end) if parent else None
        if before is not None or not parent:
            bases[at] = _base(before, found.at)
    return found._replace(made=made, bases=bases)


def _base(before: ChangeRecord | None, at: str) -> Made | None:
    """Return what a modifier at that time was given of the change before it."""
    if before is None or before.op != "set":
        return None
    until = until_of(before.encoding)
    if until is not None and time_of(at).timestamp() * 1000 >= until:
        return None
    value = before.value if form_of(before.encoding) == "json" else b""
    return Made(value, before.encoding, before.schema)
