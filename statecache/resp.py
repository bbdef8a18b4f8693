"""Commands as one piece of RESP; redis-py's own packing takes three times as long for a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hiredis import pack_command

Command = Sequence[Any]


def packed(commands: Sequence[Command]) -> list[bytes]:
    """Return the commands, of texts, bytes and numbers, encoded in RESP.

    hiredis is given no numbers: it would call Python to format them, and where a signal handler raises there, it reads
    memory that is not there.
    """
    if len(commands) == 1:
        return [pack_command(_spelled(commands[0]))]
    return [b"".join([pack_command(_spelled(command)) for command in commands])] if commands else []


def _spelled(command: Command) -> tuple[Any, ...]:
    return tuple([repr(one) if type(one) is int or type(one) is float else one for one in command])
