"""What the library itself keeps as states beside those of users: typed views pass over it."""

from __future__ import annotations

from statecache.core.step.records import STEP_SCHEMA
from statecache.rules.checkpoints import CHECKPOINT_SCHEMA

OWN_SCHEMAS = (STEP_SCHEMA, CHECKPOINT_SCHEMA)
"""The schemas of the records of steps and of checkpoints."""
