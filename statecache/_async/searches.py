"""The verb that searches by nearness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from statecache.clock import monotonic
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.read.nearest import Nearness
from statecache.core.view import VerbGroup
from statecache.errors import UsageError
from statecache.rules.vectors import MEMBER, Scored, checked_member, checked_vector

D = TypeVar("D")
V = TypeVar("V")


class AsyncSearches(VerbGroup[D], Generic[D]):
    """The verb that searches."""

    @overload
    async def nearest(
        self, vector: Sequence[float], prefix: str = ..., *, member: str = ..., after: str | None = ...,
        before: str | None = ..., where: Mapping[str, Any] | None = ..., limit: int = ..., timeout: float | None = ...,
    ) -> list[Scored[D]]: ...  # fmt: skip
    @overload
    async def nearest(
        self, vector: Sequence[float], prefix: str = ..., *, type: type[V], member: str = ...,
        after: str | None = ..., before: str | None = ..., where: Mapping[str, Any] | None = ..., limit: int = ...,
        timeout: float | None = ...,
    ) -> list[Scored[V]]: ...  # fmt: skip
    @overload
    async def nearest(
        self, vector: Sequence[float], prefix: str = ..., *, type: object, member: str = ...,
        after: str | None = ..., before: str | None = ..., where: Mapping[str, Any] | None = ..., limit: int = ...,
        timeout: float | None = ...,
    ) -> list[Scored[Any]]: ...  # fmt: skip
    async def nearest(
        self,
        vector: Sequence[float],
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        member: str = MEMBER,
        after: str | None = None,
        before: str | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
        timeout: float | None = None,
    ) -> list[Scored[Any]]:
        """Return the states whose vectors are the nearest to one, by cosine, the nearest first.

        A value stored as JSON holds its vector in that member: a list of numbers, or 32-bit floats in base64, or an
        object of several, of which the nearest counts. What holds none, or one of other dimensions, is not found. The
        prefix, `after`, `before` and `where` say which states are meant, as in `list`, and one namespace is searched.

        Where its vectors are indexed (`statecache vectors create`), Postgres finds candidates by pgvector, as near as
        its graph gets, and these are compared exactly with what is written but not yet indexed. Where they are not, all
        states that are meant are read and compared: LimitExceeded is raised for more than 10,000. `timeout` bounds each
        exchange with a server, in seconds.
        """
        if not self._view.full(prefix):
            hint = "Give its prefix, like 'notes/'; namespaces() lists them."
            raise UsageError("one namespace is searched at a time", hint=hint)
        typed = self._view.policy.encoding == "raw" or (self._view.kind if type is None else type) is not Any
        if not (isinstance(limit, int) and limit >= 1):
            raise UsageError(f"limit={limit!r} is not a whole number above 0")
        selection = self._view.selection(prefix, after, before, where, OWN_SCHEMAS if typed else ())
        wanted = Nearness(selection, checked_member(member), checked_vector(vector), limit)
        seconds = self._view.end_of(timeout) - monotonic()
        found = await self._runtime.nearest.ranked(wanted, seconds=seconds)
        states = [(self._view.state_of(one.record, type), one.score) for one in found]
        return [Scored(state, score) for state, score in states if state is not None]
