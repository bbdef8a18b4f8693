"""The names of the states that a thread's checkpoints are kept in, and the order in which they are listed.

What LangGraph calls a thread, a namespace, a checkpoint, a task or a channel may be any text, and makes a segment.
"""

from __future__ import annotations

from functools import lru_cache

from statecache import UsageError
from statecache.adapters.segments import refuse_nul, segment

THREAD_BYTES_MAX = 120
NAMESPACE_BYTES_MAX = 100
TASK_BYTES_MAX = 50
CHANNEL_BYTES_MAX = 100
CHECKPOINT_BYTES_MAX = 36
"""How many UTF-8 bytes of each stand in a name; a UUID has 36. A name has at most 512 in all."""

_SLASHES_OF_PIECES = 4


def inverted(checkpoint_id: str) -> str:
    """Return a text that sorts before that of every id that is less: the later an id, the earlier it is listed.

    Ids are compared as text, as LangGraph does. A digit, a letter up to `f` and a dash become one character each, so a
    UUID keeps its length; anything else becomes three. Of an id that is longer than a UUID the beginning counts.
    """
    data = checkpoint_id.encode("utf-8", "surrogatepass")[:CHECKPOINT_BYTES_MAX]
    return "".join(map(_CODES.__getitem__, data)) + "~"


def _code(byte: int) -> str:
    if byte == ord("-"):
        return "x"
    if ord("0") <= byte <= ord("9"):
        return chr(ord("p") - (byte - ord("0")))
    if ord("a") <= byte <= ord("f"):
        return chr(ord("9") - (byte - ord("a")))
    group = "y" if byte < ord("-") else "w" if byte < ord("0") else "f" if byte < ord("a") else "0"
    return f"{group}{255 - byte:02x}"


_CODES = [_code(byte) for byte in range(256)]


class Place:
    """A thread's namespace, and the names of its states."""

    __slots__ = ("checkpoint_ns", "ns", "thread", "thread_id")

    def __init__(self, thread_id: object, checkpoint_ns: str = "") -> None:
        if thread_id is None:
            raise UsageError("thread_id is None", hint="Give each conversation a thread of its own.")
        self.thread_id, self.checkpoint_ns = str(thread_id), checkpoint_ns
        for what, text in (("thread_id", self.thread_id), ("checkpoint_ns", checkpoint_ns)):
            refuse_nul(what, text)
        self.thread = segment(self.thread_id, THREAD_BYTES_MAX)
        self.ns = segment(checkpoint_ns, NAMESPACE_BYTES_MAX)

    @property
    def head(self) -> str:
        """The name of the state that says which checkpoint is the latest."""
        return f"{self.thread}/head/{self.ns}"

    @property
    def checkpoints(self) -> str:
        """What the names of all checkpoints begin with."""
        return f"{self.thread}/cp/{self.ns}/"

    @property
    def channels(self) -> str:
        """What the names of all channels that have a state of their own begin with."""
        return f"{self.thread}/ch/{self.ns}/"

    @property
    def writes(self) -> str:
        """What the names of all pending writes that have states of their own begin with."""
        return f"{self.thread}/w/{self.ns}/"

    def checkpoint(self, checkpoint_id: str) -> str:
        """Return the name of a checkpoint's state."""
        return self.checkpoints + checkpoint_segment(checkpoint_id)

    def channel(self, channel: str, piece: int = 0, *, beside: bool = False) -> str:
        """Return the name of a state that holds a channel's value, or a further piece of it; there is one beside."""
        name = self.channels + segment(channel, CHANNEL_BYTES_MAX)
        number = str(piece) if piece else ""
        return f"{name}/beside{number}" if beside else f"{name}/{number}" if piece else name

    def writes_of(self, checkpoint_id: str) -> str:
        """Return what the names of a checkpoint's pending writes begin with."""
        return f"{self.writes}{checkpoint_segment(checkpoint_id)}/"

    def writes_of_task(self, checkpoint_id: str, task_id: str) -> str:
        """Return what the names of a task's pending writes begin with; a number follows."""
        return f"{self.writes_of(checkpoint_id)}{segment(task_id, TASK_BYTES_MAX)}/"


def other_state_of(name: str) -> str:
    """Return the name of the channel's other state that holds the same piece of a value."""
    *channel, last = name.split("/") if name.count("/") == _SLASHES_OF_PIECES else [name, ""]
    number = last.removeprefix("beside")
    other = number if last != number else f"beside{number}"
    return "/".join([*channel, *([other] if other else [])])


@lru_cache(maxsize=64)
def place_at(thread_id: str, checkpoint_ns: str) -> Place:
    """Return the place, which is spelled once for all checkpoints of a listing."""
    return Place(thread_id, checkpoint_ns)


def checkpoint_segment(checkpoint_id: str) -> str:
    """Return the last segment of a checkpoint's name: the inverted id, and the id, for those who look for it."""
    refuse_nul("checkpoint_id", checkpoint_id)
    return inverted(checkpoint_id) + segment(checkpoint_id, CHECKPOINT_BYTES_MAX)
