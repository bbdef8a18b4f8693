"""Work in a forked child."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable


def in_a_child(work: Callable[[], object]) -> int:
    """Run the function in a forked child and return its pid; the child's status is 0 where it succeeded, and it says
    on stderr why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python >= 3.12 warns of threads; these are idle
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def status_of(pid: int) -> int:
    """Return how a child ended, once it has."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
