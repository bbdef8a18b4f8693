"""The policy by which a namespace has checkpoints made."""

from __future__ import annotations

from math import inf

import msgspec

from statecache.errors import UsageError

EVERY_S_MIN = 1.0
"""The shortest span of time in which a policy may have a checkpoint made, in seconds."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When checkpoints of a namespace's keys are made without being asked for, by the clients that write them.

    `every_changes`: at every version that is a multiple of it. `every_s`: at the first change of a key in each such
    span of time, of at least a second. `before_step`: before the function of a step is called. `at_shutdown`: when a
    client is closed, of the keys that it has written. With `group` they are checkpoints of the key's whole group.
    Raises UsageError for values that are none of these, and where no checkpoint is asked for.
    """

    every_changes: int | None = None
    every_s: float | None = None
    before_step: bool = False
    at_shutdown: bool = False
    group: bool = False

    def __post_init__(self) -> None:
        changes, seconds = self.every_changes, self.every_s
        if changes is not None and not (isinstance(changes, int) and not isinstance(changes, bool) and changes >= 1):
            raise UsageError(f"every_changes={changes!r} is not a whole number above 0")
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and EVERY_S_MIN <= seconds < inf):
            raise UsageError(f"every_s={seconds!r} is not a number of seconds from {EVERY_S_MIN:g} on")
        for name in ("before_step", "at_shutdown", "group"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}={getattr(self, name)!r} is neither True nor False")
        if changes is None and seconds is None and not (self.before_step or self.at_shutdown):
            raise UsageError(
                "this CheckpointPolicy asks for no checkpoint",
                hint="Say every_changes=, every_s=, before_step=True or at_shutdown=True.",
            )
