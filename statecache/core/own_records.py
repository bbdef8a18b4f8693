"""What the library itself keeps as states beside those of users: typed views pass over it."""

from __future__ import annotations

from statecache.core.step.records import STEP_SCHEMA
from statecache.errors import UsageError
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA

OWN_SCHEMAS = (STEP_SCHEMA, CHECKPOINT_SCHEMA)
"""The schemas of the records of steps and of checkpoints."""


def refuse_checkpoint(key: str, schema: str) -> None:
    """Raise UsageError for the record of a checkpoint, which would name something else if it were written elsewhere."""
    if schema == CHECKPOINT_SCHEMA:
        hint = "rename_checkpoint() gives one another label, and delete_checkpoint() takes it away."
        raise UsageError(f"{key!r} is a checkpoint", hint=hint)
