"""What this process has put last, so that what follows is written over it without being read, and read without asking.

    latest     of a thread's namespace the head, the checkpoint that it names and the channels, as they were committed
               here. Whatever is written over them is compared with what is there: where somebody else has written
               meanwhile, the commit conflicts, and all is read anew. So nothing of it needs to be believed
    pieces     what large values held, by the version of the channel's state and the checkpoint that it was put with.
               That never changes, so it is true as long as a checkpoint names it

Both are bounded, and what was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache._process import begins_anew_after_fork, mutex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from statecache import State
    from statecache.adapters.langgraph.names import Place

PLACES_MAX = 128
"""Of how many threads, or subgraphs of such, the latest checkpoint is remembered."""
CHANNELS_MAX = 32
"""Of how many channels a checkpoint is at most that is remembered."""
PIECES_BYTES_MAX = 32 * 1024 * 1024
"""How many bytes of large values are remembered."""
_PIECE_BYTES_MAX = PIECES_BYTES_MAX // 8


class PieceName(NamedTuple):
    """A channel's state, its version, the id of the checkpoint that it was put with, and the digest of its bytes."""

    name: str
    version: int
    of: str
    digest: str


class Latest(NamedTuple):
    """A namespace of a thread as it was committed last: its head, its checkpoint, and its channels without values."""

    head: State[Any]
    checkpoint: State[Any]
    channels: Mapping[str, State[Any]]


class Recent:
    """What is remembered; threads and event loops share it."""

    def __init__(self) -> None:
        self.begin_anew(mutex())
        begins_anew_after_fork(self)

    def begin_anew(self, mutex: AbstractContextManager[Any]) -> None:
        """Remember nothing in a forked child, whose parent may have been about to remember more."""
        self._mutex = mutex
        self._latest: OrderedDict[tuple[str, str], Latest] = OrderedDict()
        self._pieces: OrderedDict[PieceName, bytes] = OrderedDict()
        self._versions: dict[tuple[str, int], PieceName] = {}
        self._bytes = 0

    def latest(self, place: Place) -> Latest | None:
        """Return what was committed last there."""
        with self._mutex:
            return self._latest.get(_name(place))

    def put(self, place: Place, latest: Latest) -> None:
        """Remember what was committed, unless something newer is remembered by now."""
        name = _name(place)
        with self._mutex:
            known = self._latest.get(name)
            if known is not None and _place_of(known.head) > _place_of(latest.head):
                return
            self._latest[name] = latest
            self._latest.move_to_end(name)
            if len(latest.checkpoint.value["channel_values"]) > CHANNELS_MAX:
                del self._latest[name]
            while len(self._latest) > PLACES_MAX:
                self._latest.popitem(last=False)

    def take(self, place: Place, checkpoint_id: str) -> Latest | None:
        """Return what was committed last if that is the checkpoint, to one caller until it is given back by `put`."""
        with self._mutex:
            latest = self._latest.get(_name(place))
            if latest is None or latest.checkpoint.value["checkpoint_id"] != checkpoint_id:
                return None
            return self._latest.pop(_name(place))

    def forget(self, place: Place) -> None:
        """Forget what was committed there, for it is not the latest any more."""
        with self._mutex:
            self._latest.pop(_name(place), None)

    def pieces(self, names: Iterable[PieceName]) -> dict[PieceName, bytes]:
        """Return those of the pieces that are remembered."""
        found: dict[PieceName, bytes] = {}
        with self._mutex:
            for name in names:
                piece = self._pieces.get(name)
                if piece is not None:
                    self._pieces.move_to_end(name)
                    found[name] = piece
        return found

    def has_version(self, name: str, version: int) -> bool:
        """Return whether a piece of that version of a channel's state is remembered, put with whichever checkpoint."""
        with self._mutex:
            return (name, version) in self._versions

    def add(self, pieces: Mapping[PieceName, bytes]) -> None:
        """Remember pieces."""
        with self._mutex:
            for name, piece in pieces.items():
                if name not in self._pieces and len(piece) <= _PIECE_BYTES_MAX:
                    self._pieces[name] = piece
                    self._versions[name[:2]] = name
                    self._bytes += len(piece)
            while self._bytes > PIECES_BYTES_MAX:
                name, piece = self._pieces.popitem(last=False)
                self._bytes -= len(piece)
                if self._versions.get(name[:2]) == name:
                    del self._versions[name[:2]]


def _name(place: Place) -> tuple[str, str]:
    return place.thread_id, place.checkpoint_ns


def _place_of(state: State[Any]) -> tuple[int, int]:
    return state.epoch, state.version
