"""How pages are filled: the states that hold what is only ever added to, some of it each, below what a value may have.

A page takes 64 items or 16 KiB, or one larger item, so what an addition writes does not grow with what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from statecache.adapters.items import Kept

PAGE_ITEMS_MAX = 64
PAGE_BYTES_MAX = 16 * 1024
ADDED_PAGES = 60
"""A large addition has larger pages, so that it has less than four times as many: a commit takes 256 states."""
WRITTEN_PAGES_MAX = 255
"""How many pages are written by one commit, beside the head."""
VALUE_BYTES_MAX = 8 * 1024 * 1024
FRAME_BYTES = 128
"""What a page has beside its items, and some more."""
_ITEMS_A_LOT, _BYTES_A_LOT = 500, 4 << 20
T = TypeVar("T")


def filling(last: list[Any] | None, items: Sequence[Kept], most: int = VALUE_BYTES_MAX) -> list[list[Any]]:
    """Return what pages hold once items are added: the last page first, where there is one, and then new ones."""
    bytes_max = min(max(PAGE_BYTES_MAX, sum(item.size for item in items) // ADDED_PAGES), most)
    items_max = max(PAGE_ITEMS_MAX, len(items) // ADDED_PAGES)
    pages = [] if last is None else [[*last]]
    size = len(msgspec.json.encode(last)) if last else 0
    for item in items:
        if not pages or (pages[-1] and (len(pages[-1]) >= items_max or size + item.size > bytes_max)):
            pages.append([])
            size = 0
        pages[-1].append(item.data)
        size += item.size + 1
    return pages


def lots(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in lots that one commit takes, given how many bytes each of them has."""
    lot, total = list[T](), 0
    for item in items:
        if lot and (len(lot) == _ITEMS_A_LOT or total + size(item) > _BYTES_A_LOT):
            yield lot
            lot, total = [], 0
        lot.append(item)
        total += size(item)
    if lot:
        yield lot
