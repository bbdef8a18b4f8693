"""The command `statecache`, for operators and for people who look.

Everything heavy is imported by the command that needs it; without the extra `cli` there is one line that says so.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
import warnings

from statecache.cli.exits import CONFIGURATION, INTERRUPTED

NEEDS = "statecache: the command line needs typer and rich: pip install 'statecache[cli]' ('.[cli]' in a checkout)"


def main() -> None:
    """Run the command line and end the process with its exit status."""
    _stand_in_for_closed()
    _escape_what_has_no_code()
    if not sys.warnoptions:  # Ctrl-C ends a call wherever it is, before it was awaited too
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
    try:
        sys.exit(_status())
    except KeyboardInterrupt:  # while modules are still being read
        sys.exit(INTERRUPTED)


def _stand_in_for_closed() -> None:
    """Have what was closed by who began the process lead nowhere, but for the output, which then cannot be written.

    A file or connection that is opened later would get its number, and what is printed with it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (nowhere := os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)) < number:
                pass
            if nowhere > number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8"))


def _escape_what_has_no_code() -> None:
    """Have what the output's encoding has no code for (Latin-1 has no arrows, ASCII no accents) written as its escape.

    It is JSON's escape, so that a value that is printed can be read again; what is written as bytes stays as it is.
    """
    codecs.register_error("statecache.escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="statecache.escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)), error.end


def _status() -> int:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print(NEEDS, file=sys.stderr)
        return CONFIGURATION
    gc.disable()  # what is imported is no garbage: to look for some in it takes a fifth of the time that it takes
    try:
        from statecache.cli.main import run
    finally:
        gc.freeze()
        gc.enable()
    return run(sys.argv[1:])
