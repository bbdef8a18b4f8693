"""What the verbs on history are called with, and the commits that they make of it.

Their commits say in `reason` what they were made from, which a user's own reason must not, and may be repeated: with
the `change_id` of a call whose outcome is unknown, the same verb does what it was asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.backoff import Backoff
from statecache.call_notes import note
from statecache.codec import codec_for
from statecache.core.own_records import refuse_merge_of_head
from statecache.core.view import checked_change_id, checked_reason, checked_text
from statecache.errors import CodecError, OutcomeUnknown, VersionConflict
from statecache.rules.provenance import provenance_of

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Committed, Found
    from statecache.commit_protocol.commit import Commit
    from statecache.core.view import View
    from statecache.model import Write

ASK_FIRST = (
    "After OutcomeUnknown ask outcome(error.change_id, error.keys[0]) first, and call again only where it says "
    "`not applied`."
)
"""What repeats a call on a group, which takes no change_id."""


class Terms(NamedTuple):
    """How a call's commit is to be made: until when, how durable, by whom, why, and as the repeat of which."""

    end: float
    durability: str
    actor: str
    reason: str
    change_id: str | None
    backoff: Backoff

    @classmethod
    def of(
        cls, view: View[Any], *, durability: str | None, actor: str, reason: str, timeout: float | None,
        change_id: str | None = None,
    ) -> Terms:  # fmt: skip
        """Return what a call was given, checked before any effect."""
        return cls(
            end=view.end_of(timeout),
            durability=view.durability_of(durability),
            actor=checked_text(actor, "actor"),
            reason=checked_reason(reason),
            change_id=change_id if change_id is None else checked_change_id(change_id),
            backoff=Backoff(0.001, 0.1),
        )


async def committed(
    view: View[Any], writes: Sequence[Write], terms: Terms, reason: str, *, durability: str | None = None
) -> tuple[Commit, Committed]:
    """Commit writes of one group, once; what they only compare is in no lock's way.

    Raises UsageError for a merge that would write a head whose pages it does not take along.
    """
    if (made := provenance_of(reason)) is not None and made.kind == "merge":
        for write in writes:
            refuse_merge_of_head(write.key, plain_value(view, write))
    runtime, changed = view.runtime, [write.key for write in writes if write.op != "check"]
    commit = runtime.committer.new(
        [*writes], runtime.keys.one_group([write.key for write in writes]), durability=durability or terms.durability,
        actor=terms.actor, reason=reason, end=terms.end, change_id=terms.change_id,
        locks=view.locks_of(changed, repeated=terms.change_id is not None),
    )  # fmt: skip
    done = await runtime.committer.commit(commit)
    await view.applied((commit, done))
    return commit, done


def plain_value(view: View[Any], write: Write) -> Any:
    """Return what a write makes of its key, as plain data; None where it cannot be read."""
    if view.kind is Any:
        return write.seen
    with suppress(CodecError):
        return codec_for(Any).decode(write.value, key=write.key, encoding=write.encoding)
    return None


async def again(view: View[Any], terms: Terms, error: VersionConflict) -> None:
    """Wait a moment before it is decided anew; raise the conflict where no time is left for that.

    Of a repeat that only says that nothing is known: an earlier attempt may have expected something else.
    """
    if terms.backoff.outlasts(terms.end):
        if terms.change_id is not None:
            raise OutcomeUnknown(terms.change_id, keys=(error.key,), reason=error.problem) from error
        raise error
    note(retries=1, conflicts=1)
    await view.runtime.io.sleep(terms.backoff.take())


async def applied_before(view: View[Any], key: str, terms: Terms) -> Found | None:
    """Return where an earlier call with the same change_id was applied; None where it was not, or none was named.

    What it is decided on must have been read before: an earlier attempt that still arrives then meets a changed state.
    """
    if terms.change_id is None:
        return None
    runtime = view.runtime
    shard = runtime.keys.shard(key)
    return await runtime.durable.lookup(shard, terms.change_id, [key], end=terms.end, certain=True)
