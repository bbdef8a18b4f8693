"""The command `statecache`, for operators and for people who look.

Everything heavy is imported by the command that needs it; without the extra `cli` there is one line that says so.
"""

from __future__ import annotations

import gc
import sys

from statecache.cli.exits import CONFIGURATION, INTERRUPTED

NEEDS = "statecache: the command line needs typer and rich: pip install 'statecache[cli]' ('.[cli]' in a checkout)"


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
    gc.disable()  # what is imported is no garbage: to look for some in it takes a fifth of the time that it takes
    try:
        from statecache.cli.main import run
    finally:
        gc.freeze()
        gc.enable()
    return run(sys.argv[1:])
