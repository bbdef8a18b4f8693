"""An error is its facts: how its message is made of them, and that it survives pickling with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from statecache.model import Position, State


class StateCacheError(Exception):
    """statecache failed."""

    hint: ClassVar[str] = ""

    __module__ = "statecache.errors"

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self._message())

    @property
    def problem(self) -> str:
        """The message without what to do about it."""
        return self._filled()

    @property
    def remedy(self) -> str:
        """What to do about it, or an empty text."""
        return str(self.facts.get("hint") or self.hint)

    def _filled(self, **shown: Any) -> str:
        """Return the message: the docstring with the facts filled in, those in `shown` in place of the ones kept."""
        template = " ".join((type(self).__doc__ or "").split("\n\n")[0].split())
        told = template.format_map(_Facts(self.facts | shown))
        return told[:-1] if told.endswith(("?.", "!.")) else told

    def _message(self) -> str:
        return f"{self.problem} {self.remedy}" if self.remedy else self.problem

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


class BulkError(StateCacheError):
    """{failed} of {count} writes failed, first that of {first!r}: {reason}."""

    hint = "The others are applied: `states` has them, `errors` says by name what became of the rest."
    __module__ = "statecache.errors"

    states: dict[str, State[Any]]
    errors: dict[str, StateCacheError]

    def __init__(self, *, states: dict[str, State[Any]], errors: dict[str, StateCacheError]) -> None:
        super().__init__(states=states, errors=errors)

    @property
    def problem(self) -> str:
        """The message: how many failed, and why the first of them did."""
        first, error = next(iter(self.errors.items()))
        count = len(self.errors) + len(self.states)
        return self._filled(failed=len(self.errors), count=count, first=first, reason=unended(error.problem))


class CursorEnded(StateCacheError):
    """Changes of shard {shard} cannot be read on from this cursor: {reason}."""

    hint = "Begin anew, or go on with since=error.cursor, and see to what lies between by yourself."
    __module__ = "statecache.errors"
    shard: int
    position: Position
    reason: str
    cursor: str

    def __init__(self, shard: int, position: Position, *, reason: str, cursor: str) -> None:
        super().__init__(shard=shard, position=position, reason=reason, cursor=cursor)


def unended(text: str) -> str:
    """Return a reason without the full stop at its end: other programs' messages bring their own."""
    return text.rstrip(". \n") or text


class _Facts(dict[str, Any]):
    """Facts of which a missing one shows as a question mark, instead of a KeyError that hides the error."""

    def __missing__(self, key: str) -> str:
        return "?"


def _rebuild(kind: type[StateCacheError], facts: dict[str, Any]) -> StateCacheError:
    error = kind.__new__(kind)
    StateCacheError.__init__(error, **facts)
    return error
