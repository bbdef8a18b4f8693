"""What a session does with verbs about several states: read, written and deleted together, moved, committed unread.

Each write of `set_many` is a commit of its own, so it is an operation of its own, of a session that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from statecache import BulkError, Create, Delete, NotFound, Set, StateCacheError
from statecache.model import ABSENT, PRESENT
from tests.simulation.history import Invoke, Recorder, Seen, seen_of

if TYPE_CHECKING:
    from statecache import AsyncStateCache, State


class ManyVerbs:
    """The verbs about several states of a session."""

    groups: Mapping[str, Sequence[str]]
    levels: Sequence[str]
    modes: Sequence[str]
    _cache: AsyncStateCache
    _recorder: Recorder
    _name: str
    _rng: Random
    _keys: Sequence[str]
    _begin: Callable[..., Invoke]
    _noting: Callable[..., Any]
    _seen: Callable[..., Seen]
    _timeout: Callable[[], float | None]
    _value: Callable[..., dict[str, Any]]
    _written: Callable[..., Any]
    _wrote: Callable[..., None]

    def _some(self) -> list[str]:
        return self._rng.sample(self._keys, self._rng.randint(1, len(self._keys)))

    async def _get_many(self, _: str) -> None:
        names = self._some()
        mode: Any = self._rng.choice(self.modes)
        sent = self._begin("get_many", names, "read", mode=mode)
        with self._noting(sent):
            found = await self._cache.get_many(names, read=mode, timeout=self._timeout())
            self._recorder.ok(sent, read=[self._seen(name, found[name]) for name in names])

    async def _set_many(self, _: str) -> None:
        """Write several keys, of any groups; what became of each is noted as an operation of its own."""
        names, level = self._some(), self._rng.choice(self.levels)
        sent = {
            name: self._recorder.invoke(f"{self._name}m{at}", "set_many", [name], kind="write", level=level)
            for at, name in enumerate(names)
        }
        values = {name: self._value(one) for name, one in sent.items()}
        states, errors, other = {}, {}, None
        try:
            states = await self._cache.set_many(values, durability=level, timeout=self._timeout())  # type: ignore[arg-type]
        except BulkError as error:
            states, errors = error.states, error.errors
        except BaseException as error:  # whatever it is, it is noted of each
            other = error
            if not isinstance(error, StateCacheError):
                raise
        finally:
            for name, one in sent.items():
                with self._noting(one):
                    if name in states:
                        self._wrote(one, [states[name]])
                    elif problem := errors.get(name) or other:
                        raise problem

    async def _delete_many(self, key: str) -> None:
        sent = self._begin("delete_many", [key], "write", expected={key: PRESENT})
        with self._noting(sent):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            try:
                count = await self._cache.delete_many([key], **how)
            except BulkError as error:
                raise error.errors[key] from error
            if count:
                self._recorder.ok(sent)
            else:
                self._recorder.fail(sent, NotFound(key), final=True, read=[Seen(key=key, op="absent")])

    async def _commit(self, key: str) -> None:
        """Write some keys of a group in one commit, without having read them."""
        group = next(keys for keys in self.groups.values() if key in keys)
        names = self._rng.sample(group, self._rng.randint(1, len(group)))
        ops = {name: self._rng.choice(("set", "set", "create", "delete")) for name in names}
        expected = {name: {"create": ABSENT, "delete": PRESENT}[op] for name, op in ops.items() if op != "set"}
        sent = self._begin("commit", names, "write", expected=expected, own_id=self._rng.random() < 0.5)
        value = self._value(sent)
        kinds: dict[str, Callable[[str], Any]] = {
            "set": lambda name: Set(name, value), "create": lambda name: Create(name, value), "delete": Delete,
        }  # fmt: skip
        await self._sent_again(sent, [kinds[op](name) for name, op in ops.items()])

    async def _sent_again(self, sent: Invoke, writes: list[Any]) -> None:
        """Send a commit, and twice more under its change_id where its outcome is not known."""
        for left in (True, True, False):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            how |= {"change_id": sent.change_id} if sent.change_id else {}
            with self._noting(sent) as doubt:
                states = await self._cache.commit(writes, **how)
                self._wrote(sent, [state for state in states if state is not None])
            if not doubt.change_id or not left:
                return
            sent = self._recorder.again(sent, change_id=doubt.change_id)

    async def _rename(self, key: str) -> None:
        """Move what stands at a key to another one of its group, in one commit."""
        group = [name for name in next(keys for keys in self.groups.values() if key in keys) if name != key]
        if not group:
            return
        to, replace = self._rng.choice(group), self._rng.random() < 0.5
        expected = {key: PRESENT} if replace else {key: PRESENT, to: ABSENT}
        sent = self._begin("rename", [key, to], "write", expected=expected)
        with self._noting(sent):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            state = await self._cache.rename(key, to, replace=replace, **how)
            self._wrote(sent, [state])

    async def _copy(self, key: str) -> None:
        """Copy what stands at a key to any other one."""
        to = self._rng.choice([name for name in self._keys if name != key])
        sent = self._begin("copy", [to], "write")
        with self._noting(sent):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            self._wrote(sent, [await self._cache.copy(key, to, replace=True, **how)])

    async def _touch(self, key: str) -> None:
        sent = self._begin("touch", [key], "write", expected={key: PRESENT})
        with self._noting(sent):
            how: Any = {"reason": sent.tag, "durability": sent.level, "timeout": self._timeout()}
            self._wrote(sent, [await self._cache.touch(key, ttl=self._rng.choice((0.1, 2.0, inf)), **how)])


class Work:
    """The function of a transaction, for both clients."""

    def __init__(self, session: Any, sent: Invoke, names: list[str], to_write: list[str], deletes: set[str]) -> None:
        self._session = session
        self._sent = sent
        self._names = names
        self._to_write = to_write
        self._deletes = deletes
        self.read: list[Seen] = []
        self.tx: Any = None

    async def run(self, tx: Any) -> None:
        self._start(tx)
        for name in self._names:
            self._do(tx, name, await tx.get(name))

    def plainly(self, tx: Any) -> None:
        self._start(tx)
        for name in self._names:
            self._do(tx, name, tx.get(name))

    def _start(self, tx: Any) -> None:
        self.tx = tx
        self.read.clear()

    def _do(self, tx: Any, name: str, state: State[Any] | None) -> None:
        self.read.append(Seen(key=name, op="absent") if state is None else seen_of(state))
        if name in self._deletes and state is not None:
            tx.delete(name)
        elif name in self._to_write:
            tx.set(name, self._session._value(self._sent, None if state is None else state.value))
