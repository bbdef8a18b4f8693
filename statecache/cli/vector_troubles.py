"""What keeps states out of indexes of vectors, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from statecache.cli.screen import counted

_LACKS_RIGHT = "42501"


class VectorTrouble(NamedTuple):
    """One thing that keeps states out of an index: what it is, what it costs, and what to do."""

    what: str
    costs: str
    remedy: str


def vector_troubles(found: Iterable[tuple[str, int, str]]) -> Iterator[VectorTrouble]:
    """Yield what is in the way of indexes, given by namespace, the number of states refused, and the trouble or ''."""
    for namespace, refused, trouble in found:
        if trouble:
            yield VectorTrouble(
                f"the index of the vectors of {namespace!r} takes nothing in: {trouble}",
                _costs(trouble),
                "remove the cause (of rights, what the schema's owner lacks); workers try it again by themselves",
            )
        if refused:
            yield VectorTrouble(
                f"the index of the vectors of {namespace!r} has refused {counted(refused, 'state')} for the data",
                "searches do not find them",
                f"remove the cause, then `statecache vectors drop {namespace}` and `create` it again, which tries all",
            )


def _costs(trouble: str) -> str:
    """Return what a trouble costs searches; they and workers use an index with the rights of the schema's owner."""
    refused = "are refused where they need that right too; else they " if trouble.startswith(_LACKS_RIGHT) else ""
    return f"searches {refused}compare what waits, and raise LimitExceeded where that is more than 10,000 states"
