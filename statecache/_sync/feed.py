# Generated from statecache/_async/feed.py by tests/generators/unasync.py. Do not edit.

"""The verbs that follow what changes: `changes` gives every change once, `watch` the newest state of what changed.

What is given, in which order, and from where on, stands in `statecache.core.feed.feed`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from statecache.changes import Change
from statecache.clock import boottime, monotonic
from statecache.codec import codec_for
from statecache.concurrency import run
from statecache.core.feed.consumers import END_S, Consumer, checked_consumer
from statecache.core.feed.feed import ROWS, Feed
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.view import VerbGroup
from statecache.errors import StateCacheError
from statecache.expiry import expires_at
from statecache.history_errors import HistoryDamaged
from statecache.model import Position

if TYPE_CHECKING:
    from statecache.core.feed.feed import Row
    from statecache.core.view import View

D = TypeVar("D")
V = TypeVar("V")


class Feeds(VerbGroup[D], Generic[D]):
    """The verbs that follow changes."""

    @overload
    def changes(
        self, prefix: str = ..., *, since: str | None = ..., consumer: str | None = ..., follow: bool = ...,
        timeout: float | None = ...,
    ) -> Changes[D]: ...  # fmt: skip
    @overload
    def changes(
        self, prefix: str = ..., *, type: type[V], since: str | None = ..., consumer: str | None = ...,
        follow: bool = ..., timeout: float | None = ...,
    ) -> Changes[V]: ...  # fmt: skip
    @overload
    def changes(
        self, prefix: str = ..., *, type: object, since: str | None = ..., consumer: str | None = ...,
        follow: bool = ..., timeout: float | None = ...,
    ) -> Changes[Any]: ...  # fmt: skip
    def changes(
        self,
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        since: str | None = None,
        consumer: str | None = None,
        follow: bool = True,
        timeout: float | None = None,
    ) -> Changes[Any]:
        """Return an iterator of every change under the prefix that Postgres holds, each once, and of those to come.

        Changes of one group come in the order of their commits, and so do all of one shard; there is no order between
        shards. Only what is durable is given: nothing is taken back later. `since` is where to begin: a `cursor` that a
        feed of this prefix, or of a shorter one, gave; `"now"`, when its `with` block begins, or else when the
        first change is asked for, not when this is called; or None for all that there is. With `follow=False` it ends
        where it has come to the end, else it waits for more.

        With `consumer`, a name, Postgres keeps how far it has come, and `since` is only where a new name begins. A
        change counts as handled when the next is asked for, or when the feed's `with` block is left. One
        process reads for a name at a time, and others wait, whatever the `timeout`; the changes that one had handled
        just before it died are given again. A second feed of the name in the same task or thread raises UsageError. To
        handle each exactly once, store its effect and `cursor` together, and give that as `since`. Of a change whose
        value is no longer kept, as its namespace's policy has it, `kept` is false and `value` is None.

        With a type, the records of steps and checkpoints are left out. `timeout` bounds each exchange with a server, in
        seconds. Raises CursorEnded where changes cannot be read on from the cursor, LeaseLost where another process has
        the consumer's name or Postgres was restored to before it was had here, CodecError for a value that is not of
        the type, and HistoryDamaged for a change that does not fit its hash, or its value its digest; asked again, it
        goes on behind that one.
        """
        self._view.end_of(timeout)
        feed = Feed(self._runtime, self._view.full(prefix), since, follow=follow)
        name = None if consumer is None else checked_consumer(consumer)
        return Changes(self._view, feed, type, consumer=name, since=since, timeout=timeout)

    @overload
    def watch(self, prefix: str = ..., *, initial: bool = ..., timeout: float | None = ...) -> Watch[D]: ...
    @overload
    def watch(
        self, prefix: str = ..., *, type: type[V], initial: bool = ..., timeout: float | None = ...
    ) -> Watch[V]: ...
    @overload
    def watch(
        self, prefix: str = ..., *, type: object, initial: bool = ..., timeout: float | None = ...
    ) -> Watch[Any]: ...
    def watch(
        self,
        prefix: str = "",
        *,
        type: Any = None,  # noqa: A002
        initial: bool = False,
        timeout: float | None = None,
    ) -> Watch[Any]:
        """Return an iterator of what changes under the prefix from now on: of each key its newest change, deletes too.

        "Now" is when its `with` block begins, or else when the first change is asked for, not when this is
        called. What a key went through between two looks is left out. Of each key versions go up. Only what is durable
        is given. With `initial` all that is there comes first, by key. With a type, the records of steps and
        checkpoints are left out. `timeout` bounds each exchange with a server, in seconds. Raises HistoryDamaged as
        `changes` does.
        """
        self._view.end_of(timeout)
        feed = Feed(self._runtime, self._view.full(prefix), "now")
        return Watch(self._view, feed, type, initial=initial, timeout=timeout)


class Following(Generic[V]):
    """What the iterators of changes share: decoding, their end, and that they can be a block."""

    def __init__(self, view: View[Any], feed: Feed, type: Any, timeout: float | None) -> None:  # noqa: A002
        self._view = view
        self._feed = feed
        self._typed = (view.kind if type is None else type) is not Any
        self._codec = view.codec if type is None else codec_for(type, view.policy.encoding)
        self._timeout = timeout

    def _seconds(self) -> float:
        """Return how long an exchange may take; raise UsageError where the client is closing."""
        return self._view.end_of(self._timeout) - monotonic()

    def _left_out(self, row: Row) -> bool:
        return self._typed and row[12] in OWN_SCHEMAS

    def _change(self, row: Row, passed: Callable[[], object]) -> Change[V]:
        """Return the change of a row, and call `passed`, for one that raises too; not where a signal interrupts."""
        try:
            change = self._decoded(row)
        except StateCacheError:
            passed()
            raise
        passed()
        return change

    def _decoded(self, row: Row) -> Change[V]:
        shard, n, _, late, key, op, data, version, epoch, change_id, parent, encoding, schema = row[:13]
        value = None
        if isinstance(data, HistoryDamaged):
            raise data
        if op == "set" and data is not None:
            value = self._codec.decode(bytes(data), key=key, encoding=encoding, schema=schema)
        return Change(
            key=key, op=op, value=value, version=version, epoch=epoch, change_id=change_id, parent_change_id=parent,
            position=Position(epoch, n), shard=shard, at=row[16], writer=row[13], actor=row[14], reason=row[15],
            schema=schema, expires_at=expires_at(encoding), late=late > 0, kept=op != "set" or data is not None,
        )  # fmt: skip

    def stop(self) -> None:
        """Have the iteration end, from within its block or beside it, instead of waiting for more."""
        self._feed.stop()

    def close(self) -> None:
        """End the iteration."""
        self._feed.stop()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        if self._feed.begins_now:
            run(self._feed.start(self._seconds()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        run(self.close())


class Changes(Following[V], Generic[V]):
    """Every change under a prefix, once; for one task or thread at a time."""

    def __init__(
        self, view: View[Any], feed: Feed, type: Any, *, consumer: str | None, since: str | None, timeout: float | None,  # noqa: A002
    ) -> None:  # fmt: skip
        super().__init__(view, feed, type, timeout)
        self._since = since
        self._consumer = None if consumer is None else Consumer(consumer, feed.prefix)
        self._taken = False

    @property
    def begun(self) -> bool:
        """Whether it was read where the feed stands, so that there is a cursor."""
        return self._feed.begun

    @property
    def cursor(self) -> str:
        """Where the feed stands, behind all that was given: a text to be given as `since`.

        Raises UsageError before anything was read.
        """
        return self._feed.cursor

    def __next__(self) -> Change[V]:
        feed = self._feed
        while True:
            if self._consumer is not None:
                run(self._tend(self._consumer))
            row = feed.peek()
            if row is None:
                if feed.ended:
                    run(self.close())
                    raise StopIteration
                run(feed.read(self._seconds()))
            elif self._left_out(row):
                feed.take()
            else:
                return self._change(row, feed.take)

    def _tend(self, consumer: Consumer) -> None:
        """Have the consumer's name, and store where it stands: all that was given so far was handled."""
        consumers, feed = self._view.runtime.consumers, self._feed
        consumer.refuse_inherited()
        if not self._taken:
            if feed.begins_now:
                run(feed.start(self._seconds()))
            begins = feed.cursor if self._since else ""
            stored = run(consumers.take(consumer, begins, seconds=self._seconds()))
            if stored != begins:
                feed.begin(stored or None)
            self._taken = True
        elif monotonic() >= consumer.store_at and feed.begun and (cursor := feed.cursor) != consumer.stored:
            run(consumers.keep(consumer, cursor, seconds=self._seconds()))
        elif boottime() >= consumer.until:
            run(consumers.keep(consumer, None, seconds=self._seconds()))

    def close(self) -> None:
        """End the iteration; of a consumer, all that was given counts as handled, and others may have its name."""
        run(self._end(self._feed.cursor if self._taken and self._feed.begun else None))

    def _end(self, cursor: str | None) -> None:
        self._feed.stop()
        if self._consumer is not None and self._taken:
            self._taken = False
            seconds = self._view.moment_of(self._timeout) - monotonic()
            run(self._view.runtime.consumers.give_back(self._consumer, cursor, seconds=seconds))

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is None:
            run(self.close())
        elif issubclass(kind, Exception):  # the change that was given last may not have been handled
            run(self._end(None))
        else:
            run(self._cut_off())

    def _cut_off(self) -> None:
        """End the iteration of who is cancelled, waiting for nobody, and let others have the name of a consumer."""
        self._feed.stop()
        runtime, consumer = self._view.runtime, self._consumer
        if consumer is not None:  # a request for its name may have been under way
            self._taken = False
            run(runtime.io.beside(lambda: runtime.consumers.withdraw(consumer), END_S))


class Watch(Following[V], Generic[V]):
    """The newest change of each key that changes under a prefix; for one task or thread at a time."""

    def __init__(
        self, view: View[Any], feed: Feed, type: Any, *, initial: bool, timeout: float | None  # noqa: A002
    ) -> None:  # fmt: skip
        super().__init__(view, feed, type, timeout)
        self._pending: dict[str, Row] = {}
        self._listing = initial
        self._last = ""
        self._listed: dict[str, int] = {}

    def __next__(self) -> Change[V]:
        feed = self._feed
        while True:
            if self._listing and not self._pending:
                run(self._list())
            elif feed.peek() is not None:  # the last call was cut short
                run(self._gather())
            elif not self._pending or (feed.has_moved and len(self._pending) < ROWS and not self._listing):
                if feed.ended and not self._pending:
                    raise StopIteration
                run(feed.read(self._seconds()))
                run(self._gather())
            if self._pending:
                key, row = next(iter(self._pending.items()))
                if not self._left_out(row) and not _replaced(row):
                    return self._change(row, partial(self._pending.pop, key))
                del self._pending[key]

    def _list(self) -> None:
        """Read a page of what is there; what is newer than where the feed begins will come again there."""
        places = run(self._feed.start(self._seconds()))
        rows = run(self._feed.states(self._last, self._seconds()))
        page, last = {row[4]: row for row in rows}, rows[-1][4] if rows else self._last
        self._listed |= {row[4]: row[7] for row in rows if row[1] >= places[row[0]].n}
        self._pending, self._last, self._listing = page, last, bool(page)  # all, or nothing where a signal interrupts

    def _gather(self) -> None:
        """Keep of what was read the newest change of each key; one counts as given when it is known what it is."""
        while (row := self._feed.peek()) is not None:
            key, version, listed = row[4], row[7], self._listed.get(row[4], 0)
            if version > listed and (not row[3] or run(self._is_newest(key, version))):
                self._pending.pop(key, None)
                self._pending[key] = row
            self._feed.take()
            if version >= listed:
                self._listed.pop(key, None)

    def _is_newest(self, key: str, version: int) -> bool:
        """Return whether a change that came late is its key's newest; others may have come before it."""
        rows = run(self._feed.states("", self._seconds(), key=key))
        return any(row[7] == version for row in rows)


def _replaced(row: Row) -> bool:
    """Whether a change's value is no longer kept: a newer one of its key has come, or is on its way."""
    return row[5] == "set" and row[6] is None
