"""What is too much for one exchange goes in several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_parts(whole: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield all of it in order, at most so many at a time."""
    for start in range(0, len(whole), most):
        yield whole[start : start + most]
