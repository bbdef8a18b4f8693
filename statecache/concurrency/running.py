"""Running coroutines that never suspend, with no event loop: all that the synchronous client needs."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager
from types import CoroutineType, TracebackType
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
def run(work: Coroutine[Any, Any, T]) -> T: ...
@overload
def run(work: T) -> T: ...
def run(work: Any) -> Any:
    """Return the result of a coroutine built on `THREADS`, which never suspends; any other value as it is."""
    return _driven(work) if work.__class__ is CoroutineType else work


def _driven(work: Any) -> Any:
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    work.close()
    raise RuntimeError("a coroutine of the synchronous client suspended")


def iterated(found: Any) -> Iterator[Any]:
    """Yield what an asynchronous iterator built on `THREADS` yields, or a plain one."""
    if not hasattr(found, "__anext__"):
        yield from found
        return
    try:
        while True:
            try:
                item = _driven(found.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        _driven(found.aclose())


def entered(block: Any) -> AbstractContextManager[Any]:
    """Return an asynchronous context manager built on `THREADS` as a plain one; a plain one as it is."""
    return _Entered(block) if hasattr(block, "__aenter__") else block


class _Entered:
    __slots__ = ("_block",)

    def __init__(self, block: Any) -> None:
        self._block = block

    def __enter__(self) -> Any:
        return run(self._block.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return run(self._block.__aexit__(kind, error, trace))
