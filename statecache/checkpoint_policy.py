"""The policy by which a namespace has checkpoints made."""

from __future__ import annotations

import msgspec


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When checkpoints of a namespace's keys are made without being asked for, by the clients that write them.

    `every_changes`: at every version that is a multiple of it. `every_s`: at the first change of a key in each such
    span of time. `before_step`: before the function of a step is called. `at_shutdown`: when a client is closed, of the
    keys that it has written. With `group` they are checkpoints of the key's whole group.
    """

    every_changes: int | None = None
    every_s: float | None = None
    before_step: bool = False
    at_shutdown: bool = False
    group: bool = False
