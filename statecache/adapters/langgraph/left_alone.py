"""What an import leaves alone: threads that were gone on with here, rolled back, or deleted.

Each namespace of a thread has a head, and whoever makes a checkpoint writes it. So the newest change of each head tells
whether the thread is as imports have left it, and so does a head itself that proves that an import has written it:

    all are an import's     what is new is put, and the heads move on
    one is anything else's  the thread was gone on with here, or rolled back: nothing more of it is put. Checkpoints
                            above the head would be the newest of a listing, though the thread is not there
    the root's is deleted   so is the thread: nothing of it is put, in no namespace, be it one that never was here
    another is deleted      what its namespace held stays deleted, and so does a checkpoint that was deleted by itself

Answers that were given here to what a run had asked stand at the head's checkpoint and move no head, so those are
looked for too. All of it is looked at before anything of a thread is put. And whatever is put goes in a transaction
that compares what it rests on with what an import has left:

    the head of the graph, that of the namespace, and the checkpoints that these name
    what is written over; of writes that stand in states of their own, their checkpoint

An agent that comes in between has changed one of these, which is then looked at in its turn. One kind of answer changes
none: that at a checkpoint whose writes stand in states of their own. Those are looked at once more before a head moves
on from it, and not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from statecache import AlreadyExists, Create, Delete, Set, State, VersionConflict
from statecache.adapters.imported import IMPORT, LOOKS_MAX
from statecache.adapters.langgraph.documents import config_of, imported, own, proves_import, told
from statecache.adapters.langgraph.names import Place, checkpoint_segment
from statecache.adapters.langgraph.own_states import name_of, own_states
from statecache.adapters.langgraph.threads import PRUNE
from statecache.adapters.plans import Asked, Call, Compared, Declined, Plan, Together, call, for_reason, through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple

    from statecache import Change, Durability
    from statecache.adapters.clients import Clients
    from statecache.adapters.langgraph.reading import PackedWrites
    from statecache.adapters.langgraph.saver import StateCacheSaver

T = TypeVar("T")


class Source(Protocol):
    """Where checkpoints are read: another checkpointer, or what reads for one."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that is named, with its pending writes; None where it is gone."""


class LeftAlone(Exception):
    """What is raised where somebody has gone on with a thread here since it was looked at, or has deleted it."""


class _NotLookedAt(Declined):
    """What is raised where a transaction finds a state of which it is not known who has written it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Importing:
    """Carries out plans whose changes say that an import has made them, and that go on only from what imports left."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._absent = set[str]()
        self._imported = set[str]()
        self._named: dict[str, str] = {}

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan for a caller who waits; raise LeftAlone where it would write over another's change."""
        return self._clients.run(for_reason(through(plan, self._carried_out), IMPORT))

    def may_be_absent(self, name: str) -> None:
        """Note that there is no such state, of which nothing is to be left alone for that."""
        self._absent.add(name)

    def may_be_replaced(self, states: Iterable[State[Any]]) -> None:
        """Note that these states, which were read, may be written over though no import has made them."""
        self._imported.update(state.change_id for state in states)

    def left_so(self, name: str, state: State[Any]) -> Plan[bool]:
        """Return whether an import has made a state, which was read; a prune since does not count.

        True as well where the state has changed since it was read: whatever is written over it is going to conflict.
        """
        if state.change_id in self._imported:
            return True
        if name.split("/")[1] == "head" and proves_import(state):
            self._imported.add(state.change_id)
            return True
        changes: list[Change[Any]] = yield from call("history", name, limit=2, reverse=True)
        if not changes:
            return False
        newest = changes[0]
        reason = next((change.reason for change in changes if change.reason != PRUNE), "")
        if newest.change_id == state.change_id and reason == IMPORT:
            self._imported.add(state.change_id)
            return True
        return (newest.epoch, newest.version) > (state.epoch, state.version)

    def _carried_out(self, asked: Asked) -> Plan[Any]:
        if isinstance(asked, Together):
            return (yield Together([through(one, self._carried_out) for one in asked.plans]))
        if not isinstance(asked, Call) or asked.verb not in ("commit", "set", "update"):
            return (yield asked)
        level = asked.options.get("durability")
        if asked.verb == "commit":
            steps: list[Set | Create | Delete] = [*asked.arguments[0]]
            made = yield from self._compared([one.name for one in steps], lambda _: steps, level)
            return [made.get(one.name) for one in steps]
        name, value = asked.arguments
        if asked.verb == "set":
            one = Set(name, value, expected=asked.options["expected"])
            made = yield from self._compared([name], lambda _: [one], level)
            return made[name]
        for _ in range(LOOKS_MAX):
            try:
                made = yield from self._compared(
                    [name], lambda found: [Set(name, value(found.value), expected=found)], level
                )
            except VersionConflict as error:  # another import was faster, or is to be left alone
                lost = error
            else:
                return made[name]
        raise lost

    def _compared(
        self, names: list[str], steps_over: Callable[[Any], list[Any]], level: Durability | None
    ) -> Plan[Mapping[str, State[Any]]]:
        """Write what `steps_over` makes of the first state, in a transaction that compares what it rests on."""
        thread, kind, ns, *more = names[0].split("/")
        heads = [*dict.fromkeys([f"{thread}/head/{Place('').ns}", f"{thread}/head/{ns}"])]
        written_at = [f"{thread}/cp/{ns}/{more[0]}"] if kind == "w" else names if names == names[:1] else []
        looked_at = set[str]()

        def decide(found: Mapping[str, State[Any] | None]) -> list[Set | Delete]:
            if any(found[name] is None for name in written_at):
                raise LeftAlone
            for head in heads:
                self._refuse_unknown(head, found[head])
                named = self._note_named(head, found[head])
                if named is not None:
                    if named not in found:
                        raise _NotLookedAt(named)
                    self._refuse_unknown(named, found[named])
                    elsewhere = named.replace("/cp/", "/w/", 1) + "/"
                    if head in names and _says_elsewhere(found[named]) and elsewhere not in looked_at:
                        raise _NotLookedAt(elsewhere)
            for name in [*written_at, *names]:
                if found[name] is not None and name.split("/")[1] in ("cp", "w"):
                    self._refuse_unknown(name, found[name])
            return [_marked(one) for one in _expected(steps_over(found[names[0]]), found)]

        while True:
            named = [self._named[head] for head in heads if head in self._named]
            try:
                looked = [*dict.fromkeys([*heads, *named, *written_at, *names])]
                made = yield Compared(looked, decide, {"durability": level})
            except _NotLookedAt as one:
                looked_at.add(one.name)
                yield from self._look(one.name)
            else:
                self._absent -= made.keys()
                self._imported |= {state.change_id for state in made.values()}
                return made  # type: ignore[no-any-return]

    def _refuse_unknown(self, name: str, state: State[Any] | None) -> None:
        """Raise where it is not known that an import has left a state so, or that there is none."""
        if name not in self._absent if state is None else state.change_id not in self._imported:
            raise _NotLookedAt(name)

    def _note_named(self, head: str, state: State[Any] | None) -> str | None:
        """Note, and return, the name of the checkpoint that a head names."""
        self._named.pop(head, None)
        checkpoint_id = "" if state is None else told(state)["checkpoint_id"]
        if not checkpoint_id:
            return None
        thread, _, ns = head.split("/")
        self._named[head] = f"{thread}/cp/{ns}/{checkpoint_segment(checkpoint_id)}"
        return self._named[head]

    def _look(self, name: str) -> Plan[None]:
        """Raise LeftAlone where a state, or one with that prefix, is not as an import left it.

        A checkpoint that a head names may have been deleted by itself.
        """
        if name.endswith("/"):
            for one in (yield from own_states(name, values=False)):
                if not (yield from self.left_so(name_of(one.key), one)):
                    raise LeftAlone
            return
        state: State[Any] = yield from call("get", name, default=None, read="primary")
        if state.change_id:
            if not (yield from self.left_so(name, state)):
                raise LeftAlone
        elif state.version and name.split("/")[1] == "head":
            raise LeftAlone
        else:
            self._absent.add(name)


def _marked(step: Set | Delete) -> Set | Delete:
    """Return what writes a head so that it says by whom: a thread that has many need not be asked for each."""
    is_head = step.name.split("/")[1] == "head"
    return Set(step.name, imported(step.value), expected=step.expected) if is_head and isinstance(step, Set) else step


def _says_elsewhere(checkpoint: State[Any] | None) -> bool:
    """Return whether what tasks write at a checkpoint stands in states of their own."""
    return checkpoint is not None and bool(checkpoint.value["writes_elsewhere"])


def _expected(steps: Iterable[Set | Create | Delete], found: Mapping[str, State[Any] | None]) -> list[Set | Delete]:
    """Return what is to be written; raise what a commit raises where the states are not as expected."""
    writes = list[Set | Delete]()
    for one in steps:
        state = found[one.name]
        if isinstance(one, Create):
            if state is not None:
                raise AlreadyExists(state.key)
            writes.append(Set(one.name, one.value))
            continue
        expected = one.expected.change_id or None if isinstance(one.expected, State) else None
        if expected != (state.change_id if state else None):
            raise VersionConflict(state.key if state else one.name, expected, state.change_id if state else None)
        if state is not None or isinstance(one, Set):
            writes.append(one)
    return writes


class ThreadAsFound:
    """A thread that is imported, as it was found here when first something of it was not here.

    `has_more` says whether tasks have written something at a checkpoint here that they have not at the source's.
    """

    def __init__(
        self, thread_id: str, target: StateCacheSaver, importing: Importing, source: Source,
        has_more: Callable[[PackedWrites, CheckpointTuple | None], bool],
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
        if is_there:
            return not self._are_as_imported(self._states_of(place, checkpoint_id))
        return self._was_deleted(place, checkpoint_id)

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
            self._heads = {name_of(state.key): state for state in run(own_states(f"{self._root.thread}/head/"))}
            _refuse_foreign(self._heads.values())
            left_so = all(run(self._importing.left_so(*one)) for one in self._heads.items())
            self._gone_on_with = not left_so or (self._root.head not in self._heads and self._is_gone(self._root.head))
        return self._heads

    def _was_answered(self, place: Place, head: State[Any]) -> bool:
        """Return whether tasks have written here, at the latest checkpoint, what they have not at the source's."""
        checkpoint_id = own(head)["checkpoint_id"]
        states = self._states_of(place, checkpoint_id) if checkpoint_id else []
        if not states or self._are_as_imported(states):
            return False
        config = config_of(place, checkpoint_id)
        here = self._target._clients.run(self._target._get_writes(config))
        if here is not None and self._has_more(here, self._source.get_tuple(config)):
            return True
        self._importing.may_be_replaced(states)
        return False

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
                self._importing.may_be_absent(head)
        return is_deleted(self._absent[head])

    def _read(self, name: str) -> State[Any]:
        state: State[Any] = self._target._clients.run(call("get", name, default=None, read="primary"))
        return state

    def _states_of(self, place: Place, checkpoint_id: str) -> list[State[Any]]:
        """Return a checkpoint, if there is one, and what tasks have written at it in states of their own."""
        checkpoint = self._read(place.checkpoint(checkpoint_id))
        more = self._target._clients.run(own_states(place.writes_of(checkpoint_id), values=False))
        return [*([checkpoint] if checkpoint.change_id else []), *more]

    def _are_as_imported(self, states: Iterable[State[Any]]) -> bool:
        """Return whether an import has written all of these last: nobody has gone on from them here."""
        run, left_so = self._target._clients.run, self._importing.left_so
        return all(run(left_so(name_of(state.key), state)) for state in states)


def _refuse_foreign(states: Iterable[State[Any]]) -> None:
    """Raise CodecError for what stands at the name of a head and is none."""
    for state in states:
        told(state)


def is_deleted(state: State[Any]) -> bool:
    """Return whether there was a state, which is not there any more."""
    return state.version > 0 and not state.change_id
