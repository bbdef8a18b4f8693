"""What the library itself keeps as states beside those of users: typed views pass over it."""

from __future__ import annotations

from typing import Any

from statecache.core.step.records import STEP_SCHEMA
from statecache.errors import UsageError
from statecache.keys import group_of
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA
from statecache.rules.heads import is_head

OWN_SCHEMAS = (STEP_SCHEMA, CHECKPOINT_SCHEMA)
"""The schemas of the records of steps and of checkpoints."""


def refuse_checkpoint(key: str, schema: str) -> None:
    """Raise UsageError for the record of a checkpoint, which would name something else if it were written elsewhere."""
    if schema == CHECKPOINT_SCHEMA:
        hint = "rename_checkpoint() gives one another label, and delete_checkpoint() takes it away."
        raise UsageError(f"{key!r} is a checkpoint", hint=hint)


def refuse_branch_of_head(key: str, value: Any) -> None:
    """Raise UsageError for the branch of a key alone whose plain data names other keys of its group."""
    if is_head(value):
        hint = f"Say group=True, with the groups: all that {group_of(key)!r} holds is taken along in one commit."
        raise UsageError(f"{key!r} names other keys of its group, which a branch of it alone would not have", hint=hint)


def refuse_copy_of_head(key: str, value: Any) -> None:
    """Raise UsageError for the copy of a key whose plain data names other keys of its group."""
    if is_head(value):
        hint = (
            f"branch() with group=True, of the groups: all that {group_of(key)!r} holds is taken along in one commit."
        )
        raise UsageError(f"{key!r} names other keys of its group, which a copy of it would not have", hint=hint)


def refuse_merge_of_head(key: str, value: Any) -> None:
    """Raise UsageError for a merge that would make plain data of a key that names other keys of its group."""
    if is_head(value):
        hint = (
            "Nothing was applied. Read from the branch, by the adapter that has written it, what is new there, and add "
            "it by the call of its framework."
        )
        raise UsageError(f"{key!r} names other keys of its group, which a merge of it would not take along", hint=hint)
