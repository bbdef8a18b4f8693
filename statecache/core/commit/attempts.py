"""One attempt of a commit: the script sent once, and its reply, proven to belong to what was asked.

Every attempt carries a nonce, which its reply repeats, and the time past which the server must not execute it any more.
The nonce says whose attempt it is and which one, so the server can be told to refuse all that were sent before.
What it comes to is decided by the committer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import count
from math import ceil
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import NoScriptError

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import monotonic
from statecache.core.commit.durability_support import COPIED
from statecache.errors import RedisUnavailable
from statecache.lua import parts_of, script
from statecache.model import COMMIT_BYTES_MAX
from statecache.redis_errors import DEMOTED, code_of

if TYPE_CHECKING:
    from statecache.commit_protocol.answers import Found
    from statecache.commit_protocol.commit import Commit
    from statecache.core.commit.durability_support import DurabilitySupport
    from statecache.core.epoch.newest_epochs import NewestEpochs
    from statecache.core.redis.connection import Link
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace
    from statecache.settings import Settings

SEND_S_MIN = 0.005
"""With less time left than this, in seconds, nothing is sent: an answer could hardly come, and be looked for."""
_TOLD_S = 0.01
"""From how many seconds on it is told what a commit spent its time on."""


def never_sent(commit: Commit) -> RedisUnavailable:
    """Return the error of a commit whose time was up before it could be sent."""
    spent = {"waiting for a connection": commit.waited_s} | commit.spent
    told = [f"{seconds:.2g} s {what}" for what, seconds in spent.items() if seconds >= _TOLD_S]
    went = f", of which {', '.join(told)}" if told else ""
    return RedisUnavailable(
        "timeout", detail=f"the time was up before the commit was sent{went}",
        hint="Whether Redis is up is not known. Give the call more time, or have fewer under way at once.",
    )  # fmt: skip


class Attempts:
    """Single attempts to run the commit script, by itself or within MULTI."""

    def __init__(
        self, settings: Settings, keys: KeySpace, redis: RedisTier, support: DurabilitySupport, epochs: NewestEpochs
    ) -> None:
        self._settings = settings
        self._epochs = epochs
        self._keys = keys
        self._redis = redis
        self._support = support
        self.script = script("commit")
        self._confirming = script("confirm")
        self._leases = [keys.leases(shard) for shard in range(keys.shards)]
        self._fixed = [
            (keys.meta(shard), keys.changes(shard), keys.unflushed(shard), keys.hydrating(shard))
            for shard in range(keys.shards)
        ]
        self._numbers = count(1)
        self.begin_anew(mutex())
        begins_anew_after_fork(self)
        limits = settings.backlog_entries_max, settings.backlog_bytes_max, COMMIT_BYTES_MAX, settings.value_bytes_max
        self._limits = tuple(map(str, limits))

    def begin_anew(self, _: AbstractContextManager[Any]) -> None:
        """Have a forked child's attempts told apart from its parent's."""
        self._sender = token_hex(6).encode()

    def _nonce(self) -> bytes:
        return b"%b.%d" % (self._sender, next(self._numbers))

    async def send(self, link: Link, commit: Commit, seconds: float) -> list[Any]:
        """Run the script once, and WAIT behind it on the same connection where the durability level needs it.

        What was loaded for the commit is installed ahead of it. Once that was carried out, the commit has no install.
        """
        attempt_s = seconds if seconds < 0.2 else seconds * 0.4
        install, turn = commit.install, commit.turn
        commands = [] if install is None else [install.command(link)]
        commands.append(self.call(link, commit, attempt_s))
        if turn is not None and commit.passes:
            commands.append(turn.passing(link, commit.change_id))
        replies = await self._run(link, commands, commit, seconds=attempt_s, wait_ms=round(attempt_s * 800))
        if install is not None and install.carried_out(link, replies.pop(0)):
            commit.install = None
        replies[0] = await self.answered(link, commit, replies[0])
        if turn is not None and commit.passes and len(replies) > 1:
            turn.passed(link, replies.pop(1))
        await self.noted(link, replies[0])
        return replies

    async def _run(self, link: Link, commands: list[Any], commit: Commit, *, seconds: float, wait_ms: int) -> list[Any]:
        """Run the commands, and WAIT behind them on the same connection where the durability level counts copies."""
        if commit.durability not in COPIED:
            return await link.run(commands, seconds=seconds)
        wait = self._support.wait_command(commit.durability, wait_ms)
        return await link.run([*commands, wait], seconds=seconds, until=_lacks_replicas)

    async def send_watched(self, commit: Commit, link: Link) -> list[Any]:
        """Return the replies of the script in MULTI; none where the commit has to be sent, or repeated, outside of it.

        An EXEC that did not run says only that something touched a watched state, if only its time to live: the script
        knows whether that was a change, and of which state.
        """
        seconds = commit.end - monotonic()
        if seconds < SEND_S_MIN:
            return []
        attempt_s = seconds if seconds < 0.2 else seconds / 2
        commands: list[Any] = [("MULTI",), self.call(link, commit, attempt_s), ("EXEC",)]
        try:
            replies = await self._run(link, commands, commit, seconds=attempt_s, wait_ms=round(seconds * 400))
            opened, queued, executed, *waited = replies
            refused = isinstance(queued, Exception)
            if opened != b"OK" or not (refused or queued == b"QUEUED"):
                await self._slipped(link)
            link.watching = isinstance(executed, Exception)
            if not refused and isinstance(executed, list):
                executed[0] = await self.answered(link, commit, executed[0])
        except RedisUnavailable as error:
            commit.unanswered(error)
            return []
        if executed is None:
            return []
        decisive = queued if refused else executed if isinstance(executed, Exception) else executed[0]
        await self.noted(link, decisive)
        return [decisive, *waited]

    async def confirm(self, link: Link, commit: Commit, found: Found, seconds: float) -> list[Any]:
        """Have the server confirm that it holds a change that was looked up, and WAIT behind that on one connection.

        Finding a change writes nothing, and a WAIT behind nothing says nothing about copies of it.
        """
        attempt_s = seconds if seconds < 0.2 else seconds * 0.4
        commit.nonce = self._nonce()
        meta, changes, *_ = self._fixed[commit.shard]
        position = str(found.position) if found.in_stream else ""
        arguments = (commit.nonce, commit.change_id, self._settings.fence, position)
        asked = link.call(self._confirming, (meta, changes), arguments)
        replies = await self._run(link, [asked], commit, seconds=attempt_s, wait_ms=round(attempt_s * 800))
        replies[0] = await self.answered(link, commit, replies[0])
        link.knows(self._confirming, not isinstance(replies[0], Exception))
        return replies

    def call(self, link: Link, commit: Commit, attempt_s: float) -> Any:
        """Return the script's command, which the server refuses once this side has given the attempt up."""
        before, commit.nonce = commit.nonce, self._nonce()
        given_up = monotonic() + attempt_s
        commit.latest = given_up + link.handshake_s
        latest_ms = int(given_up * 1000 + link.ahead_ms)
        arguments = commit.arguments(
            self._settings, self._limits, replicas=self._support.replicas_of(commit.durability),
            epoch=self._epochs.of(commit.shard),
        )  # fmt: skip
        arguments.append(latest_ms)
        if commit.repeat or commit.lingers:
            last = max(commit.lingers, commit.latest) + self._settings.timeout_s
            others_until = f"{int(last * 1000 + link.ahead_ms)}"
            if commit.lingers and not before.startswith(self._sender):  # a parent's, that had forked
                commit.numbered = False
            if commit.lingers and commit.numbered and commit.durability == "memory":  # it lasts as long as Redis does
                unanswered = (commit.lingers + link.handshake_s) * 1000 + link.ahead_ms
                others_until += f" {ceil(unanswered)}"
            arguments.append(others_until)
        asked = (*self._fixed[commit.shard], *commit.redis_keys)
        if commit.locks:
            arguments += ([] if commit.repeat or commit.lingers else [""]) + [*commit.locks.spelled()]
            asked = (*asked, self._leases[commit.shard])
        return link.call(self.script, asked, arguments)

    async def answered(self, link: Link, commit: Commit, reply: Any) -> Any:
        """Return the parts of the script's answer, proven to be this attempt's; an error reply unchanged."""
        reply = parts_of(reply)
        if isinstance(reply, list) and (not reply or reply[0] != commit.nonce):
            await self._slipped(link)
        return reply

    async def _slipped(self, link: Link) -> NoReturn:
        """Close a connection that answered something else than was asked, or refused MULTI; raise RedisUnavailable."""
        await link.close()
        raise RedisUnavailable("connection", detail="a reply belongs to another request")

    async def noted(self, link: Link, reply: Any) -> None:
        """Note whether the server knows the script: where it has forgotten the digest, the script has not run.

        A connection on which an attempt was late is closed, so that the next one asks for the server's time anew. So is
        one to a server that is not the primary any more, so that the next one finds its successor.
        """
        if isinstance(reply, list):
            link.knows(self.script, True)
            if reply[1] == b"LATE":
                await link.close()
            elif reply[1] == b"FENCED":  # it may be another server by now, or another role of the same
                link.support.clear()
                if reply[5:] == [b"behind"]:  # it leads to an old primary, whatever the address does by now
                    await link.close()
        elif isinstance(reply, NoScriptError):
            link.knows(self.script, False)
        elif isinstance(reply, Exception) and code_of(reply) in DEMOTED:
            await self._redis.leave(link)


def _lacks_replicas(reply: Any) -> bool:
    """Return whether a commit was refused for too few replicas: a WAIT behind that would wait in vain."""
    if not isinstance(reply, list):
        return False
    return reply[1:2] == [b"REPLICAS"] or (len(reply) == 1 and _lacks_replicas(reply[0]))
