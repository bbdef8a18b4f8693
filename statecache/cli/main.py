"""Running the command line: arguments in, exit status out, every error one line on stderr.

With --json the error is also the last line of stdout, as one object. With --debug before the command, or
STATECACHE_DEBUG=1, the traceback stands above the line on stderr.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import typer

from statecache.cli.app import command_line
from statecache.cli.error_text import CommandGiven, facts_of, given_by, interrupted, line_of, origin_told
from statecache.cli.exits import FULL_DISK, INTERRUPTED, OK, USAGE, status_of
from statecache.cli.screen import print_json, tell
from statecache.disk_space import FULL
from statecache.errors import StateCacheError
from statecache.settings import process_environment

_Usage: type[Exception] = typer.BadParameter.__mro__[2]
"""What every wrong use of the command line is to typer: its class moved between releases."""
_DASHED = "A VALUE that begins with a dash goes behind `--`, as in `statecache set runs/1 -- -5`."
_DEBUG = "It goes before the command: `statecache --debug …`."


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    try:
        status = command_line(_first(arguments)).main(
            args=list(arguments), prog_name="statecache", standalone_mode=False, windows_expand_args=False
        )
        sys.stdout.flush()
        if status == INTERRUPTED:
            _tell_interrupted(arguments)
    except (KeyboardInterrupt, typer.Abort):
        _give_up()
        return INTERRUPTED
    except _Usage as error:
        return _usage(error, arguments)
    except BrokenPipeError:
        return _nobody_reads_on()
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # typer ends with 1 where it met a closed pipe itself
            raise
        return _nobody_reads_on()
    except OSError as error:
        if error.errno not in (*FULL, errno.EBADF):
            return _told(error, arguments, unexpected=True)
        return _full(error)
    except StateCacheError as error:
        return _told(error, arguments)
    except Exception as error:  # the last line of defence: one line, not a traceback
        return _told(error, arguments, unexpected=True)
    return status if isinstance(status, int) else OK


def _nobody_reads_on() -> int:
    _drop_stdout()
    return OK


def _give_up() -> None:
    """Write what is buffered as far as it goes at once: who reads it may have stopped, and would be waited for."""
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        try:
            os.set_blocking(number, False)
            sys.stdout.flush()
        except OSError:
            os.set_blocking(number, True)
            _drop_stdout()
        else:
            os.set_blocking(number, True)


def _tell_interrupted(arguments: Sequence[str]) -> None:
    """Say on stderr what a command that writes may have done by now."""
    if "--dry-run" not in _options(arguments) and (told := interrupted(_asked(arguments))):
        tell(told)


def _full(error: OSError) -> int:
    """Say on stderr alone that there is no room: stdout may be what is full."""
    _drop_stdout()
    where = f" ({error.filename})" if error.filename else ""
    tell(f"the output could not be written: {error.strerror}{where}.")
    return FULL_DISK


def _drop_stdout() -> None:
    """Let what is buffered go, which would fail again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, behind which nothing is an option."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _usage(error: Exception, arguments: Sequence[str]) -> int:
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    if "\n" in message:
        print(message, file=sys.stderr)
        return USAGE
    command = context.command_path if context is not None else _command_of(arguments)
    unknown = str(getattr(error, "option_name", "") or "")
    more = f" {_DEBUG}" if unknown == "--debug" else ""
    if command.endswith(" set") and re.match(r"-[^-]", unknown):
        more = f" {_DASHED}"
    line = f"{message}{'' if message[-1:] in '.?!' else '.'}{more} See `{command} --help`."
    tell(f"{line}")
    if "--json" in _options(arguments):
        print_json({"error": "UsageError", "message": line})
    return USAGE


def _command_of(arguments: Sequence[str]) -> str:
    """Return the command that was meant, as its help is asked for."""
    return " ".join(["statecache", *_meant(arguments)[0]])


def _behind_debug(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[arguments[:1] == ["--debug"] :]


def _first(arguments: Sequence[str]) -> str:
    """Return the word that names the command, or a group of commands, if any does."""
    return next(iter(_behind_debug(arguments)), "")


def _meant(arguments: Sequence[str]) -> tuple[list[str], Any]:
    """Return the words of the command that was meant, and the command."""
    command = command_line(_first(arguments))
    words: list[str] = []
    for word in _behind_debug(arguments):
        known: Mapping[str, Any] = getattr(command, "commands", {})
        if word not in known:
            break
        command = known[word]
        words.append(word)
    return words, command


def _asked(arguments: Sequence[str]) -> CommandGiven:
    """Return which command it was; groups go back and branch in commits that have no change_id of the caller's."""
    words, command = _meant(arguments)
    takes = any("--change-id" in option.opts for option in command.params)
    whole = "--group" in _options(arguments) and words != ["checkpoint"]
    return CommandGiven(" ".join(words), takes and not whole, takes)


def _told(error: Exception, arguments: Sequence[str], *, unexpected: bool = False) -> int:
    if "--debug" in _options(arguments) or process_environment().get("STATECACHE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    line = line_of(error, _asked(arguments))
    if unexpected:
        line = f"statecache: unexpected {type(error).__name__}: {line.partition(': ')[2]}"
        line += " (`statecache --debug …` shows where)"
    line = origin_told(line, given=given_by(_options(arguments)))
    tell(line.removeprefix("statecache: "))
    if "--json" in _options(arguments):
        print_json(facts_of(error) | {"message": line.removeprefix("statecache: ")})
    return status_of(error)
