"""Locks, decided purely: what a holder may believe of its lease and until when, and what a waiter waits for.

A lock is a key that somebody holds for `ttl` seconds at a time: its lease stands in Redis with a deadline on the
server's clock, and with a **token** (epoch, count) that is greater than every one before it, over failovers too. The
holder renews it at a third of its ttl. What it believes of it rests on its own clock, one that counts suspend:

    the server set the deadline after the attempt was sent, so ttl seconds after the sending the lease may be over;
    the holder stops believing a margin earlier, for clocks do not run alike

so a holder knows that it lost its lease before anybody else can have it, however long it was stopped, as long as it
looks. What it wrote without looking is refused: its commits carry the token, and Redis and Postgres compare it.

Who waits is called when it is its turn: the lease is its own then, but for a short time only, in which it has to come
and take it; one that died is passed over, by the client behind it, which hears of the call and asks when that time is
over. Until it is called it asks again now and then, for two reasons: so that its place is kept, for a place ends by
itself too, and where a call was lost; and at once when the lease that it waits for ends by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from statecache.errors import LeaseLost, LimitExceeded, UsageError
from statecache.keys import group_of
from statecache.model import Locking, Token

TTL_S_MIN = 0.05
TTL_S_MAX = 86_400.0
"""The shortest and the longest ttl, in seconds: shorter ones are over before a slow exchange is, and whoever waits for
a dead holder waits for its ttl."""
PLACE_S = 10.0
"""How long a waiter's place in the queue is kept without its asking, in seconds."""
ASK_S = 3.0
"""The longest time after which a waiter asks again, in seconds; after three lost askings it loses its place."""
DEAF_S = 0.25
"""The same for a waiter that cannot hear its call at the moment; less than COMING_S."""
COMING_S = 1.0
"""The time in which a waiter that was called has to take the lock, in seconds."""
WAITERS_MAX = 1000
"""How many may wait for one lock."""
_MARGIN = 0.1
_MARGIN_S_MAX = 1.0


def checked_ttl(ttl: Any) -> float:
    """Return a ttl in seconds, or raise UsageError."""
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not TTL_S_MIN <= ttl <= TTL_S_MAX:
        limits = f"It is the time after which others may have the lock of a holder that died: {TTL_S_MIN:g} to "
        raise UsageError(
            f"ttl={ttl!r} is not a number of seconds that a lease can have", hint=f"{limits}{TTL_S_MAX:g}."
        )
    return float(ttl)


def checked_patience(timeout: Any) -> float | None:
    """Return the seconds to wait for a lock, 0 for not at all and None for ever; or raise UsageError."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not (isfinite(timeout) and timeout >= 0):
        raise UsageError(f"timeout={timeout!r} is not a number of seconds to wait for a lock, 0 for not at all")
    return float(timeout)


def _always() -> object:
    return True


class Holding(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """A lease as its holder knows it. Moments are on a clock that counts suspend.

    `request` names it to the server before it has a token, `owner` is the task or thread that locked it. `gone` says
    that the server, or the holder, ended it, `unreturned` that the server was not told; `guarded` that a commit was
    made under it; `may_arrive` that an attempt to take it was never answered, and may be executed yet; `inherited` that
    it is the lease of the process that has forked this one. `block` returns what it is held for, or None once that is
    gone.
    """

    key: str
    shard: int
    request: str
    ttl: float
    owner: object
    token: Token = Token(0, 0)
    believed_until: float = 0.0
    renew_at: float = 0.0
    gone: bool = False
    unreturned: bool = False
    guarded: bool = False
    may_arrive: bool = False
    inherited: bool = False
    block: Callable[[], object] = _always

    def granted(self, started: float) -> None:
        """Note that the server gave or renewed the lease, in an attempt that was sent at that moment."""
        self.believed_until = started + self.ttl - min(self.ttl * _MARGIN, _MARGIN_S_MAX)
        self.renew_at = started + self.ttl / 3

    def unanswered(self, now: float) -> None:
        """Note that a renewal was not answered: the next one follows soon."""
        self.renew_at = now + self.ttl / 15

    def lost(self, now: float) -> bool:
        """Return whether somebody else may have the lock by now."""
        return self.gone or now >= self.believed_until

    def lost_error(self, reason: str) -> LeaseLost:
        """Return the error for a lease that was lost, for that reason unless it is another process's."""
        hint = ""
        if self.inherited:
            reason = "it belongs to the process that has forked, and not to this one"
            hint = "Lock it in the process that uses the lease."
        return LeaseLost(self.key, token=str(self.token), reason=reason, hint=hint)

    def answered(self, verdict: str, rest: Sequence[str], started: float, *, repeated: bool) -> bool:
        """Note the answer to asking for the lock, and return whether it was granted.

        Raises LimitExceeded where too many wait for it. After `repeated` attempts an earlier one may be executed yet.
        """
        self.may_arrive = self.may_arrive or repeated
        if verdict == "FULL":
            what, waiters = "the number of waiters", int(rest[0]) + 1
            raise LimitExceeded(what, actual=waiters, limit=WAITERS_MAX, key=self.key)
        if verdict == "OK":
            self.token = Token.parse(rest[0]) or self.token
            self.granted(started)
        return verdict == "OK"


class Holdings(WeakValueDictionary[str, Holding]):
    """The leases that somebody has, by request: those to which somebody refers, and whose block is not gone.

    So a lease whose holder was interrupted before he had it, or on his way to give it back, is not renewed for ever.
    """

    def all(self) -> tuple[Holding, ...]:
        """Return those of this moment, whatever other threads do."""
        return tuple(one for held in self.valuerefs() if (one := held()) is not None and one.block() is not None)


class Locks(msgspec.Struct, frozen=True):
    """The locks of a commit: the leases that it is made under, and the keys that nobody else may hold a lease of.

    `guarded` are keys of which some lock may stand in the way; `locking` is what the view that commits asks for. One
    that `is_unguarded` has none in its way, which the server is told as `UNGUARDED` once it says that it enforces them.
    """

    held: tuple[Holding, ...]
    guarded: tuple[str, ...]
    locking: Locking | None = None
    is_unguarded: bool = False

    def __bool__(self) -> bool:
        return bool(self.held or self.guarded)

    def spelled(self) -> tuple[str, str]:
        """Return both as texts for the commit script: a NUL, which no key holds, ends every word."""
        tokens = "".join(f"{one.key}\0{one.token}\0" for one in self.held)
        return tokens, "".join(f"{key}\0" for key in self.guarded)

    def refused(self, key: str) -> None:
        """Note that the server does not know this lease any more."""
        for one in self.held:
            if one.key == key:
                one.gone = True


UNGUARDED = ("",)
"""What a commit passes as guarded keys where locks are enforced, but no lock can be in its way."""


def guards_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys whose locks guard the given ones: the keys themselves, and all above them in their group."""
    found: dict[str, None] = {}
    for key in keys:
        end = len(group_of(key))
        while end >= 0:
            found[key[:end]] = None
            if end == len(key):
                break
            end = key.find("/", end + 1)
            end = len(key) if end < 0 else end
    return tuple(found)


def forgotten(recorded: str, copies: Iterable[object]) -> tuple[int, list[str]]:
    """Return what to record again where Postgres has gone back: a revision above all known ones, and namespaces.

    `recorded` are Postgres' policies, read after the copies that the shards have. A copy that differs and is not older
    comes from a Postgres that knew more; locks that either of them says are enforced stay so. (0, []) where there is
    none.
    """
    newer: dict[str, int] = {}
    for copy in copies:
        text = copy.decode("utf-8", "replace") if isinstance(copy, bytes) else ""
        if text and text != recorded and revision_of(text) >= revision_of(recorded):
            newer[text] = revision_of(text)
    names = {name for text in (recorded, *newer) for name in text.split()[1:]}
    return (max(newer.values()) + 1, sorted(names)) if newer else (0, [])


def taken_back(recorded: str, copies: Iterable[object]) -> list[str]:
    """Return the namespaces that an older Postgres says are enforced, and the newest of the copies does not.

    They are enforced all the same: an operator may have taken them back since, or somebody asked for them just now.
    """
    newest = max((copy for copy in copies if isinstance(copy, bytes)), key=revision_of, default=b"")
    return sorted(set(recorded.split()[1:]) - set(newest.decode("utf-8", "replace").split()[1:]))


def revision_of(policies: object) -> int:
    """Return the revision of policies, or of a shard's copy of them; 0 where there are none."""
    text = policies.decode("utf-8", "replace") if isinstance(policies, bytes) else policies
    number = text.partition(" ")[0] if isinstance(text, str) else ""
    return int(number) if number.isascii() and number.isdigit() else 0


class Waiting(msgspec.Struct, kw_only=True, eq=False):
    """A waiter for a lock. Moments are on the clock for waiting; `holder` has the lock, as last heard.

    `asks_at` is written by whoever waits, `called_at` by whoever listens, so that neither takes back what the other
    notes at the same time.
    """

    key: str
    request: str
    asks_at: float
    called_at: float = inf
    holder: str = ""

    @property
    def ask_at(self) -> float:
        """The moment at which to ask next."""
        return min(self.asks_at, self.called_at)

    def asking(self) -> None:
        """Note that the waiter asks now: only what is heard from here on is a reason to ask again."""
        self.asks_at = self.called_at = inf

    def answered(self, left_s: float, holder: str, now: float, *, deaf: bool = False) -> None:
        """Note the server's answer: `holder` has the lock for `left_s` seconds, unless it renews its lease.

        A call may have been quicker than the answer. A `deaf` waiter would miss it, and asks again sooner.
        """
        self.asks_at = now + min(left_s, DEAF_S if deaf else ASK_S)
        self.holder = holder

    def called(self, request: str, left_s: float, now: float) -> bool:
        """Note that a waiter was called, and return whether it is this one; else ask when its time to come is over."""
        self.called_at = min(self.called_at, now if request == self.request else now + left_s)
        return request == self.request

    def unheard(self, now: float) -> None:
        """Note that a call may have been missed."""
        self.called_at = min(self.called_at, now)


def call_of(message: bytes) -> tuple[str, str, float] | None:
    """Return who is called: key, request, and the seconds it has for coming; None for another message."""
    word, _, rest = message.partition(b" ")
    request, _, rest = rest.partition(b" ")
    left_ms, _, key = rest.partition(b" ")
    if word != b"lock" or not left_ms.isdigit():
        return None
    return key.decode("utf-8", "replace"), request.decode("utf-8", "replace"), int(left_ms) / 1000


class StandingLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as Redis shows it. Times are in ms of the server's clock."""

    key: str
    token: Token
    until_ms: int
    ttl_ms: int
    since_ms: int
    request: str
    holder: str


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a lock's queue as Redis shows it. Times are in ms of the server's clock."""

    request: str
    until_ms: int
    ttl_ms: int
    since_ms: int
    holder: str


def lease_of(key: str, value: bytes) -> StandingLease | None:
    """Read a lease; return None where the script did not write it."""
    try:
        facts, holder = _facts(value.decode(), 5)
        token = Token.parse(facts["token"])
        if token is None:
            return None
        return StandingLease(
            key=key,
            token=token,
            until_ms=int(facts["until"]),
            ttl_ms=int(facts["ttl"]),
            since_ms=int(facts["since"]),
            request=facts["request"],
            holder=holder,
        )
    except (KeyError, ValueError):
        return None


def queue_of(value: bytes) -> list[Waiter]:
    """Read a lock's queue in order; lines that the script did not write are left out."""
    queue = []
    for line in value.decode("utf-8", "replace").splitlines():
        request, _, rest = line.partition(" ")
        try:
            facts, holder = _facts(rest, 3)
            queue.append(
                Waiter(
                    request=request,
                    until_ms=int(facts["until"]),
                    ttl_ms=int(facts["ttl"]),
                    since_ms=int(facts["since"]),
                    holder=holder,
                )
            )
        except (KeyError, ValueError):
            continue
    return queue


def _facts(text: str, count: int) -> tuple[dict[str, str], str]:
    """Split `name=value` words; what follows them is the holder, which may hold blanks."""
    *words, last = text.split(" ", count)
    return dict(word.split("=", 1) for word in words), last.removeprefix("holder=")


def shown_holder(writer: str) -> str:
    """Return a writer's name as one line."""
    return " ".join(writer.split()) or "?"
