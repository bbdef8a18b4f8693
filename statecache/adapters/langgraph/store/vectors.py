"""The vectors of items: which texts are embedded, and how their vectors are kept.

Vectors are kept with their item, so both are of one commit, as `nearest` takes them: an item's score is the cosine of
its nearest vector.
"""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode, b64encode
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from sys import byteorder
from typing import TYPE_CHECKING, Any

from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path

from statecache import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from langgraph.store.base import IndexConfig, PutOp

TEXTS_MAX = 100
"""How many texts of an item are embedded: a value with more vectors counts as having none."""
_FLOAT = "f"
_WHOLE = "$"


class Index:
    """What a store's `index=` says: who embeds, of how many dimensions the vectors are, and which fields have some."""

    def __init__(self, config: IndexConfig) -> None:
        self.config = config.copy()
        if not isinstance(config.get("dims"), int) or "embed" not in config:
            raise UsageError("index= needs `dims`, the number of dimensions, and `embed`, which makes the vectors")
        self.embeddings = ensure_embeddings(config["embed"])
        self._dims = config["dims"]
        fields: Any = config.get("fields") or [_WHOLE]
        self._fields: list[str] = [fields] if isinstance(fields, str) else [*fields]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of texts, checked."""
        with _own_errors():
            vectors = self.embeddings.embed_documents([*texts])
        return self._checked(texts, vectors)

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        """Do what `embed` does."""
        with _own_errors(asyncio.current_task()):
            vectors = await self.embeddings.aembed_documents([*texts])
        return self._checked(texts, vectors)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query, checked."""
        with _own_errors():
            vector = self.embeddings.embed_query(text)
        return self._checked([text], [vector])[0]

    async def aembed_query(self, text: str) -> list[float]:
        """Do what `embed_query` does."""
        with _own_errors(asyncio.current_task()):
            vector = await self.embeddings.aembed_query(text)
        return self._checked([text], [vector])[0]

    def texts_of(self, put: PutOp) -> dict[str, str]:
        """Return the texts of an item that are embedded, by path; a number follows where a path leads to several.

        They are its first TEXTS_MAX.
        """
        if put.value is None or put.index is False:
            return {}
        found: dict[str, str] = {}
        for path in self._fields if put.index is None else put.index:
            texts = get_text_at_path(dict(put.value), path if path == _WHOLE else tokenize_path(path))
            found |= {f"{path}.{at}" if len(texts) > 1 else path: text for at, text in enumerate(texts)}
        return dict(islice(found.items(), TEXTS_MAX))

    def _checked(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> list[list[float]]:
        if len(vectors) != len(texts):
            raise UsageError(f"`embed` made {len(vectors)} vectors of {len(texts)} texts")
        for one in vectors:
            if len(one) != self._dims:
                raise UsageError(f"`embed` made a vector of {len(one)} dimensions, and `dims` is {self._dims}")
        return [[*map(float, one)] for one in vectors]


@contextmanager
def _own_errors(task: asyncio.Task[Any] | None = None) -> Iterator[None]:
    """Raise RuntimeError where the maker of vectors raises what is no Exception: that would end the task that waits.

    What ends the process is left as it is, and so is CancelledError where somebody has cancelled the task.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):  # these reach who waits, or end the process
        raise
    except BaseException as error:  # whatever it is, who waits is told
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if is_cancelled and task is not None and task.cancelling():
            raise
        why = ", and nobody had cancelled it" if is_cancelled else f": {error}" if str(error) else ""
        raise RuntimeError(f"`embed` raised {type(error).__name__}{why}") from error


def kept(vector: Sequence[float], name: str, path: str) -> str:
    """Return the vector of an item's text as it is kept; raise UsageError for one that no search would find."""
    numbers = array(_FLOAT, vector)
    if not all(map(isfinite, numbers)):
        what = f"a vector of {path!r} in {name!r} that has a number which is not finite as a 32-bit float"
        raise UsageError(f"`embed` made {what}: no search would find it")
    return b64encode(_swapped(numbers).tobytes()).decode()


def has_vectors(document: Mapping[str, Any], dims: int) -> bool:
    """Return whether an item has any vector of so many dimensions, and so is compared with one of as many."""
    return bool(_vectors(document, dims))


def has_zeros(document: Mapping[str, Any], dims: int) -> bool:
    """Return whether an item has a vector of so many dimensions that is nothing but zeros."""
    return any(not any(one) for one in _vectors(document, dims))


def _vectors(document: Mapping[str, Any], dims: int) -> list[array[float]]:
    held: Mapping[str, str] = document.get("vectors") or {}
    if len(held) > TEXTS_MAX:
        return []
    found: list[array[float]] = [array(_FLOAT, b64decode(one)) for one in held.values()]
    return [one for one in found if len(one) == dims]


def _swapped(numbers: array[float]) -> array[float]:
    """Return the numbers with the least byte first, or as they are used here: the other way round, if at all."""
    if byteorder == "big":
        numbers.byteswap()
    return numbers
