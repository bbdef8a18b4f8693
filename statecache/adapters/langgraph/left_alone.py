"""What an import leaves alone: threads that were gone on with here, rolled back, or deleted.

Each namespace of a thread has a head, and whoever makes a checkpoint writes it. So the newest change of each head tells
whether the thread is as imports have left it:

    all are an import's     what is new is put, and the heads move on
    one is anything else's  the thread was gone on with here, or rolled back: nothing more of it is put. Checkpoints
                            above the head would be the newest of a listing, though the thread is not there
    the root's is deleted   so is the thread: nothing of it is put, in no namespace, be it one that never was here
    another is deleted      what its namespace held stays deleted, and so does a checkpoint that was deleted by itself

Answers that were given here to what a run had asked stand at the head's checkpoint and move no head, so those are
looked for too. All of it is looked at before anything of a thread is put, and each head again when it is moved: it is
written over the very change that was looked at. An agent that comes in between makes the commit conflict, and what the
agent has written is looked at in its turn. With the head of a subgraph that of the graph is looked at once more, though
the commit does not compare it: an agent that comes then may find one more checkpoint of the subgraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from statecache.adapters.imported import IMPORT
from statecache.adapters.langgraph.documents import config_of, own, told
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.own_states import name_of, own_states
from statecache.adapters.plans import Asked, Call, Plan, call, for_reason, through

if TYPE_CHECKING:
    from collections.abc import Callable

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple

    from statecache import Change, State
    from statecache.adapters.clients import Clients
    from statecache.adapters.langgraph.saver import StateCacheSaver

T = TypeVar("T")


class Source(Protocol):
    """Where checkpoints are read: another checkpointer, or what reads for one."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that is named, with its pending writes; None where it is gone."""


class LeftAlone(Exception):
    """What is raised where somebody has gone on with a thread here since it was looked at, or has deleted it."""


class Importing:
    """Carries out plans whose changes say that an import has made them, and that move only heads that imports left."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._never = set[str]()
        self._imported = set[str]()

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan for a caller who waits; raise LeftAlone where it would move another's head."""
        return self._clients.run(for_reason(through(plan, self._carried_out), IMPORT))

    def never_was(self, head: str) -> None:
        """Note that there was no such head a moment ago, not even a deleted one."""
        self._never.add(head)

    def left_so(self, name: str, head: State[Any]) -> Plan[bool]:
        """Return whether an import has made the newest change of a head, which was read."""
        if head.change_id in self._imported:
            return True
        changes: list[Change[Any]] = yield from call("history", name, limit=1, reverse=True)
        if not changes:
            return False
        newest = changes[0]
        if newest.change_id == head.change_id and newest.reason == IMPORT:
            self._imported.add(head.change_id)
            return True
        # What was read is not the newest: a commit over it is going to conflict, and then that is looked at.
        return (newest.epoch, newest.version) > (head.epoch, head.version)

    def _carried_out(self, asked: Asked) -> Plan[Any]:
        if not isinstance(asked, Call) or asked.verb != "commit":
            return (yield asked)
        moved = next((step for step in asked.arguments[0] if step.name.split("/")[1] == "head"), None)
        if moved is not None:
            yield from self._look(moved.name, moved.expected)
        made = yield asked
        if moved is not None and made[-1] is not None:
            self._imported.add(made[-1].change_id)
        return made

    def _look(self, name: str, head: State[Any] | None) -> Plan[None]:
        """Raise LeftAlone where the head that is moved, or that of the graph itself, is not as an import left it."""
        root = f"{name.split('/')[0]}/head/{Place('').ns}"
        if name != root:
            state: State[Any] = yield from call("get", root, default=None, read="primary")
            if is_deleted(state) or (state.change_id and not (yield from self.left_so(root, state))):
                raise LeftAlone
        if head is not None:
            if not (yield from self.left_so(name, head)):
                raise LeftAlone
        elif name in self._never:
            self._never.remove(name)
        elif is_deleted((yield from call("get", name, default=None, read="primary"))):
            raise LeftAlone


class Here:
    """What became here of a thread that is imported, looked at when first something of it is not here.

    `has_more` says whether tasks have written something at a checkpoint here that they have not at the source's.
    """

    def __init__(
        self, thread_id: str, target: StateCacheSaver, importing: Importing, source: Source,
        has_more: Callable[[CheckpointTuple, CheckpointTuple | None], bool],
    ) -> None:  # fmt: skip
        self._root = Place(thread_id)
        self._target, self._importing, self._source, self._has_more = target, importing, source, has_more
        self._heads: dict[str, State[Any]] | None = None
        self._absent: dict[str, State[Any]] = {}
        self._looked_at = set[str]()
        self._gone_on_with = False

    def leaves_alone(self, config: RunnableConfig, *, is_there: bool) -> bool:
        """Return whether a checkpoint is not to be put, or, of one that is there, its writes are not to be replaced."""
        place = Place(self._root.thread_id, config["configurable"]["checkpoint_ns"])
        checkpoint_id = config["configurable"]["checkpoint_id"]
        if self._was_gone_on_with(place):
            return True
        return not self._is_as_imported(place, checkpoint_id) if is_there else self._was_deleted(place, checkpoint_id)

    def note_left_alone(self) -> None:
        """Leave alone all of the thread from now on."""
        self._gone_on_with = True

    def _was_gone_on_with(self, place: Place) -> bool:
        """Return whether the thread was, or rolled back, or its run answered; that goes for all of it."""
        heads = self._known_heads()
        for one in (self._root, place):
            if not self._gone_on_with and one.head in heads and one.head not in self._looked_at:
                self._looked_at.add(one.head)
                self._gone_on_with = self._was_answered(one, heads[one.head])
        return self._gone_on_with

    def _known_heads(self) -> dict[str, State[Any]]:
        """Return the heads that there are, and note whether another has moved one, or has deleted the root's."""
        if self._heads is None:
            run = self._target._clients.run
            states = run(own_states(f"{self._root.thread}/head/"))
            self._heads = {name_of(state.key): state for state in states if told(state)}
            left_so = all(run(self._importing.left_so(*one)) for one in self._heads.items())
            self._gone_on_with = not left_so or (self._root.head not in self._heads and self._is_gone(self._root.head))
        return self._heads

    def _was_answered(self, place: Place, head: State[Any]) -> bool:
        """Return whether tasks have written here, at the latest checkpoint, what they have not at the source's."""
        checkpoint_id = own(head)["checkpoint_id"]
        if not checkpoint_id or self._is_as_imported(place, checkpoint_id):
            return False
        config = config_of(place, checkpoint_id)
        here = self._target.get_tuple(config)
        return here is not None and self._has_more(here, self._source.get_tuple(config))

    def _was_deleted(self, place: Place, checkpoint_id: str) -> bool:
        """Return whether a checkpoint that is not there was deleted, or what its namespace held."""
        if place.head not in self._known_heads():
            return self._is_gone(place.head)
        return is_deleted(self._read(place.checkpoint(checkpoint_id)))

    def _is_gone(self, head: str) -> bool:
        """Return whether a head that is not there was deleted."""
        if head not in self._absent:
            self._absent[head] = self._read(head)
            if self._absent[head].version == 0:
                self._importing.never_was(head)
        return is_deleted(self._absent[head])

    def _read(self, name: str) -> State[Any]:
        state: State[Any] = self._target._clients.run(call("get", name, default=None, read="primary"))
        return state

    def _is_as_imported(self, place: Place, checkpoint_id: str) -> bool:
        """Return whether an import has written last at a checkpoint: nobody has gone on from it here."""
        run = self._target._clients.run
        states = run(own_states(place.writes_of(checkpoint_id), values=False))
        names = [place.checkpoint(checkpoint_id), *(name_of(state.key) for state in states)]
        newest: list[list[Change[Any]]] = [run(call("history", name, limit=1, reverse=True)) for name in names]
        return all(change.reason == IMPORT for changes in newest for change in changes)


def is_deleted(state: State[Any]) -> bool:
    """Return whether there was a state, which is not there any more."""
    return state.version > 0 and not state.change_id
