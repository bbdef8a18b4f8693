"""A script's call on the tracked connection, sent by someone who has other things to do until it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statecache.core.redis.connection import Link
    from statecache.lua import Script
    from statecache.near import Signal
    from statecache.resp import Command


class Call:
    """A script's call on the tracked connection; `reply` is None until it is answered, and where it failed or was lost.

    The signal, if anybody waits for it, is set when nothing more is to be expected.
    """

    __slots__ = ("arguments", "redis_keys", "reply", "script", "signal")

    def __init__(
        self, script: Script, redis_keys: Sequence[str], arguments: Sequence[Any], signal: Signal | None = None
    ) -> None:
        self.script = script
        self.redis_keys = redis_keys
        self.arguments = arguments
        self.signal: Any = signal
        self.reply: Any = None

    def command(self, link: Link) -> Command:
        """Return the command that runs the script, for that connection."""
        return link.call(self.script, self.redis_keys, self.arguments)

    def answered(self, link: Link, reply: Any) -> None:
        """Note the reply, and wake who waits for it."""
        ran = not isinstance(reply, Exception)
        link.knows(self.script, ran)
        self.reply = reply if ran else None
        self.lost()

    def lost(self) -> None:
        """Wake who waits: no other reply comes."""
        if self.signal is not None:
            self.signal.set()
