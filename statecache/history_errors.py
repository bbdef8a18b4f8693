"""What goes wrong with the history of states: what cannot be read, found or merged."""

from __future__ import annotations

from statecache.error_facts import unended
from statecache.errors import StateCacheError


class HistoryDamaged(StateCacheError):
    """Version {version} of {key!r} cannot be read from what Postgres keeps of it: {reason}."""

    hint = "`statecache verify` names every damaged row; a backup has them whole. The current state is not concerned."
    key: str
    version: int
    reason: str

    def __init__(self, key: str, version: int, *, reason: str) -> None:
        super().__init__(key=key, version=version, reason=reason)


class VersionNotFound(StateCacheError):
    """There is no {wanted} of {key!r} in its history: {reason}."""

    hint = "`history` lists what there is; `nearest` is the version next to it that has a value, None where none has."
    key: str
    wanted: str
    reason: str
    nearest: int | None

    def __init__(self, key: str, *, wanted: str, reason: str, nearest: int | None = None) -> None:
        super().__init__(key=key, wanted=wanted, reason=reason, nearest=nearest)


class HistoryIncomplete(StateCacheError):
    """The history of {key!r} is not known up to now: {reason}."""

    hint = "Ask again once workers have flushed what is there; what was given before this is true."
    key: str
    reason: str

    def __init__(self, key: str, *, reason: str) -> None:
        super().__init__(key=key, reason=reason)

    @property
    def problem(self) -> str:
        """The message, with the reason why it is not known."""
        return self._filled(reason=unended(self.reason))


class AlreadyCurrent(StateCacheError):
    """{key!r} is as it was at {wanted} already."""

    hint = "Nothing was applied, for nothing would change."
    key: str
    wanted: str

    def __init__(self, key: str, *, wanted: str) -> None:
        super().__init__(key=key, wanted=wanted)


class CheckpointNotFound(StateCacheError):
    """{key!r} has no checkpoint {label!r}."""

    hint = "`checkpoints` lists those that there are."
    key: str
    label: str

    def __init__(self, key: str, *, label: str) -> None:
        super().__init__(key=key, label=label)


class CheckpointExists(StateCacheError):
    """{key!r} has a checkpoint {label!r} already, at {position}."""

    hint = "Give it another label, or rename the one that is there."
    key: str
    label: str
    position: str

    def __init__(self, key: str, *, label: str, position: str) -> None:
        super().__init__(key=key, label=label, position=position)


class MergeConflict(StateCacheError):
    """{branch!r} and {into!r} changed the same since version {base}: {paths}."""

    hint = "Nothing was applied. Give `function=`, which is called with base, ours and theirs and returns the value."
    branch: str
    into: str
    base: int
    paths: tuple[str, ...]

    def __init__(self, branch: str, into: str, *, base: int, paths: tuple[str, ...]) -> None:
        super().__init__(branch=branch, into=into, base=base, paths=paths)

    @property
    def problem(self) -> str:
        """The message, with the paths one after the other."""
        return self._filled(paths=", ".join(self.paths))
