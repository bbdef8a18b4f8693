"""Running the command line: arguments in, exit status out, every error one line on stderr.

With --debug, or STATECACHE_DEBUG=1, the traceback stands above that line.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer

from statecache.cli.app import app
from statecache.cli.status import INTERRUPTED, OK, USAGE, line_of, status_of
from statecache.errors import StateCacheError
from statecache.settings import process_environment

_Usage: type[Exception] = typer.BadParameter.__mro__[2]
"""What every wrong use of the command line is to typer: its class moved between releases."""


def run(arguments: Sequence[str]) -> int:
    """This gives the exit status."""
    try:
        status = typer.main.get_command(app).main(
            args=list(arguments), prog_name="statecache", standalone_mode=False, windows_expand_args=False
        )
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _Usage as error:
        return _usage(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on; what is buffered may go
        return OK
    except StateCacheError as error:
        return _told(error, arguments)
    except Exception as error:  # the last line of defence: one line, not a traceback
        return _told(error, arguments, unexpected=True)
    return status if isinstance(status, int) else OK


def _usage(error: Exception) -> int:
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    if "\n" in message:
        print(message, file=sys.stderr)
    else:
        command = context.command_path if context is not None else "statecache"
        print(f"statecache: {message}{'' if message[-1:] in '.?!' else '.'} See `{command} --help`.", file=sys.stderr)
    return USAGE


def _told(error: Exception, arguments: Sequence[str], *, unexpected: bool = False) -> int:
    if "--debug" in arguments or process_environment().get("STATECACHE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    line = line_of(error)
    if unexpected:
        line = f"statecache: unexpected {type(error).__name__}: {line.partition(': ')[2]} (--debug shows where)"
    print(line, file=sys.stderr)
    return status_of(error)
