"""The command `statecache`, for operators and for people who look.

Everything heavy is imported by the command that needs it; without the extra `cli` there is one line that says so.
"""

from __future__ import annotations

import gc
import sys

from statecache.cli.exits import CONFIGURATION, INTERRUPTED

NEEDS = "statecache: the command line needs typer and rich: pip install 'statecache[cli]'"


def main() -> None:
    """Run the command line and end the process with its exit status."""
    try:
        sys.exit(_status())
    except KeyboardInterrupt:  # while modules are still being read
        sys.exit(INTERRUPTED)


def _status() -> int:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print(NEEDS, file=sys.stderr)
        return CONFIGURATION
    gc.disable()  # what is imported stays: a tenth of a command's start would go into looking for garbage among it
    try:
        from statecache.cli.main import run
    finally:
        gc.freeze()
        gc.enable()
    return run(sys.argv[1:])
