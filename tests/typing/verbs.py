"""What a type checker knows of values: those of a typed namespace, of a `type=`, and of a client without either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, reveal_type

from msgspec import Meta

from statecache import (
    Add,
    Append,
    AsyncStateCache,
    AsyncTransaction,
    Create,
    Delete,
    Increment,
    Remove,
    Set,
    StateCache,
    Transaction,
)


@dataclass
class Job:
    """A value."""

    done: int = 0


@dataclass
class Other:
    """Another one."""

    text: str = ""


def grown(job: Job) -> Job:
    """Return what comes next of a job."""
    return Job(job.done + 1)


def changed(other: Other) -> Other:
    """Return another one."""
    return other


def counted(tx: Transaction[Job]) -> int:
    """Return what a transaction comes to."""
    return len(tx.states)


async def awaited_count(tx: AsyncTransaction[Job]) -> int:
    """Return what a transaction comes to."""
    return len(tx.states)


def paid(job: Job, receipt: int) -> Job:
    """Return what a payment makes of a job."""
    return Job(job.done + receipt)


def priced(other: Other, price: int) -> Other:
    """Return what a price makes of another one."""
    return Other(f"{other.text} {price}")


def of_a_namespace(cache: StateCache) -> None:
    """Use the verbs of the synchronous client."""
    jobs = cache.namespace("jobs", type=Job)
    reveal_type(jobs.get("a"))  # is: State[Job] | None
    reveal_type(jobs.get("a", default=Job()))  # is: State[Job]
    reveal_type(jobs.get("a", type=Other))  # is: State[Other] | None
    reveal_type(jobs.get_many(["a"]))  # is: dict[str, State[Job] | None]
    reveal_type(jobs.set("a", Job()))  # is: State[Job]
    jobs.set("a", 5)  # error: arg-type
    jobs.create("a", Other())  # error: arg-type
    jobs.set_many({"a": "b"})  # error: dict-item
    reveal_type(jobs.set_many({"a": Job()}))  # is: dict[str, State[Job]]
    reveal_type(jobs.update("a", grown))  # is: State[Job]
    reveal_type(jobs.update("a", grown, default=Job))  # is: State[Job]
    reveal_type(jobs.update("a", changed, type=Other))  # is: State[Other]
    jobs.update("a", changed)  # error: arg-type
    reveal_type(next(iter(jobs.list())))  # is: State[Job]
    reveal_type(next(iter(jobs.list(type=Other))))  # is: State[Other]
    reveal_type(jobs.wait_for("a"))  # is: State[Job] | None
    reveal_type(jobs.wait_for("a", type=Other))  # is: State[Other] | None
    reveal_type(next(jobs.changes()).value)  # is: Job | None
    reveal_type(next(jobs.watch(type=Other)).value)  # is: Other | None
    reveal_type(jobs.copy("a", "b"))  # is: State[Job]
    reveal_type(jobs.commit([Set("a", Job()), Create("b", Job()), Delete("c")]))  # is: list[State[Job] | None]
    with jobs.transaction("a") as tx:
        reveal_type(tx.get("a"))  # is: State[Job] | None
        reveal_type(tx.get("a", type=Other))  # is: State[Other] | None
        tx.set("a", 5)  # error: arg-type
    reveal_type(tx.states)  # is: dict[str, State[Job]]
    with jobs.lock("a") as lease:
        reveal_type(lease.get("a"))  # is: State[Job] | None
        lease.set("a", 5)  # error: arg-type
    reveal_type(jobs.namespace("inner", type=Other).get("a"))  # is: State[Other] | None
    reveal_type(jobs.namespace("inner").get("a"))  # is: State[Job] | None
    jobs.namespace("inner").set("a", 5)  # error: arg-type
    jobs.get("a", default=5)  # error: call-overload
    reveal_type(jobs.transact(["a"], counted))  # is: int
    reveal_type(jobs.nearest([1.0])[0].state)  # is: State[Job]
    reveal_type(jobs.nearest([1.0], type=Other)[0].state)  # is: State[Other]
    jobs.set("a", Job(), durabilty="disk")  # error: call-arg


def of_counters_and_collections(cache: StateCache) -> None:
    """Change what is there: a number, a list, a set, and nothing else."""
    jobs = cache.namespace("jobs", type=Job)
    jobs.increment("a")  # error: misc
    jobs.append("a", Job())  # error: call-overload
    jobs.add("a", Job())  # error: call-overload
    jobs.remove("a", Job())  # error: call-overload
    numbers = cache.namespace("numbers", type=int)
    reveal_type(numbers.increment("a"))  # is: State[int]
    reveal_type(numbers.increment("a", by=-5, ttl=60, change_id="12345678"))  # is: State[int]
    numbers.increment("a", by=1.5)  # error: arg-type
    numbers.append("a", 1)  # error: call-overload
    logs = cache.namespace("logs", type=list[Job])
    reveal_type(logs.append("a", Job(), Job()))  # is: State[list[Job]]
    reveal_type(logs.add("a", Job()))  # is: State[list[Job]]
    logs.append("a", 5)  # error: arg-type
    logs.increment("a")  # error: misc
    tags = cache.namespace("tags", type=set[str])
    reveal_type(tags.add("a", "x", "y"))  # is: State[set[str]]
    reveal_type(tags.remove("a", "x", timeout=1.0))  # is: State[set[str]]
    tags.add("a", 5)  # error: arg-type
    tags.append("a", "x")  # error: call-overload
    pairs = cache.namespace("pairs", type=tuple[int, ...])
    reveal_type(pairs.append("a", 1))  # is: State[tuple[int, ...]]
    with numbers.lock("a") as lease:
        reveal_type(lease.increment("a"))  # is: State[int]
    reveal_type(cache.increment("numbers/a"))  # is: State[int]
    reveal_type(cache.append("logs/a", 1, "x"))  # is: State[list[Any]]
    reveal_type(cache.remove("tags/a", "x"))  # is: State[list[Any]]
    numbers.commit([Increment("a", by=5), Append("b", [1]), Add("c", (1, 2)), Remove("d", ["x"])])


async def of_an_asynchronous_one(cache: AsyncStateCache) -> None:
    """Use those of the asynchronous client."""
    jobs = cache.namespace("jobs", type=Job)
    reveal_type(await jobs.get("a"))  # is: State[Job] | None
    await jobs.set("a", 5)  # error: arg-type
    reveal_type(await jobs.update("a", grown))  # is: State[Job]
    await jobs.update("a", changed)  # error: arg-type
    reveal_type([one async for one in jobs.list()])  # is: list[State[Job]]
    reveal_type(await jobs.transact(["a"], awaited_count))  # is: int
    reveal_type(await jobs.transact(["a"], lambda tx: len(tx.states)))  # is: int
    reveal_type(await jobs.wait_for("a"))  # is: State[Job] | None
    reveal_type(await cache.namespace("numbers", type=int).increment("a", 2))  # is: State[int]
    await jobs.increment("a")  # error: misc
    reveal_type(await cache.namespace("tags", type=frozenset[str]).add("a", "x"))  # is: State[frozenset[str]]
    async with jobs.transaction("a") as tx:
        reveal_type(await tx.get("a"))  # is: State[Job] | None
        tx.set("a", 5)  # error: arg-type


def of_a_client(cache: StateCache) -> None:
    """Use them with no type at all: anything goes, and anything comes."""
    reveal_type(cache.set("jobs/a", 5))  # is: State[Any]
    reveal_type(cache.get("jobs/a"))  # is: State[Any] | None
    reveal_type(cache.get("jobs/a", type=Job))  # is: State[Job] | None
    reveal_type(cache.update("jobs/a", grown, type=Job))  # is: State[Job]
    cache.update("jobs/a", changed, type=Job)  # error: arg-type


def of_a_union(cache: StateCache) -> None:
    """Use them with types that are no classes: what comes is checked as it is read, and nothing is known before."""
    numbers = cache.namespace("numbers", type=int | str)
    reveal_type(numbers.get("a"))  # is: State[Any] | None
    reveal_type(cache.get("numbers/a", type=int | None))  # is: State[Any] | None
    reveal_type(cache.get("numbers/a", type=int | str, default=0))  # is: State[Any]
    reveal_type(cache.get_many(["numbers/a"], type=int | str))  # is: dict[str, State[Any] | None]
    reveal_type(next(iter(cache.list("numbers/", type=int | str))))  # is: State[Any]
    cache.update("numbers/a", grown, type=Job | None)
    reveal_type(cache.get("words/a", type=Literal["a", "b"]))  # is: State[Any] | None
    reveal_type(cache.get("numbers/a", type=Annotated[int, Meta(ge=0)]))  # is: State[Any] | None
    reveal_type(cache.get("numbers/a", type=dict[str, int]))  # is: State[dict[str, int]] | None


def of_a_step(cache: StateCache) -> None:
    """Run steps: a result comes as it is read back, so only a type says what it is."""
    reveal_type(cache.step("jobs/a", "pay", lambda step: 7, type=int))  # is: int
    reveal_type(cache.step("jobs/a", "pay", lambda step: Job()))  # is: Any
    jobs = cache.namespace("jobs", type=Job)
    reveal_type(jobs.step("a", "pay", lambda step: 7, type=int, apply=paid, default=Job))  # is: int
    reveal_type(jobs.step("a", "pay", lambda step: 7, apply=paid))  # is: Any
    reveal_type(jobs.step("a", "pay", lambda step: 7, type=int, apply=priced, state_type=Other))  # is: int
    jobs.step("a", "pay", lambda step: 7, type=int, apply=priced)  # error: arg-type
    jobs.step("a", "pay", lambda step: 7, apply=priced)  # error: arg-type
    reveal_type(jobs.step("a", "pay", lambda step: 7, type=int, state_type=Other | None))  # is: int
    jobs.step("a", "pay", lambda step: 7, type=int | None, apply=paid, default=None)
    reveal_type(jobs.step("a", "pay", lambda step: 7, type=Literal["a"], apply=None))  # is: Any
    reveal_type(jobs.step("a", "pay", lambda step: 7, apply=priced, state_type=Other | None))  # is: Any


def of_history(cache: StateCache) -> None:
    """Go back, branch and merge: what comes is of the namespace's type, of a whole group it is plain data."""
    jobs = cache.namespace("jobs", type=Job)
    reveal_type(jobs.rollback("a", 1))  # is: State[Job | None]
    reveal_type(jobs.undo("a").value)  # is: Job | None
    reveal_type(jobs.rollback("a", "label", group=True))  # is: dict[str, State[Any]]
    reveal_type(jobs.redo("a", group=True))  # is: dict[str, State[Any]]
    reveal_type(jobs.branch("a", "b"))  # is: State[Job]
    reveal_type(jobs.branch("a", "b", group=True))  # is: dict[str, State[Any]]
    reveal_type(jobs.merge("b", "a"))  # is: State[Job]
    reveal_type(jobs.checkpoint("a"))  # is: Checkpoint
    reveal_type(jobs.checkpoints("a"))  # is: list[Checkpoint]
    reveal_type(jobs.ancestry("a"))  # is: list[Branch]
    jobs.rollback("a", 1.5)  # error: call-overload
    jobs.rollback("a", 1, group=True)  # error: call-overload
