"""Commands as one piece of RESP; redis-py's own packing takes three times as long for a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiredis import pack_command

Command = Sequence[Any]


def packed(commands: Sequence[Command]) -> list[bytes]:
    """Return the commands spelled out, of texts, bytes and numbers.

    hiredis never sees a number: it has Python spell it, where a signal handler may raise, and then reads what is not
    there.
    """
    if len(commands) == 1:
        return [pack_command(_spelled(commands[0]))]
    return [b"".join([pack_command(_spelled(command)) for command in commands])]


def _spelled(command: Command) -> tuple[Any, ...]:
    return tuple([repr(one) if type(one) is int or type(one) is float else one for one in command])
