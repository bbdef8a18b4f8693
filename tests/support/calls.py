"""How much work a function is, whatever the machine does beside it: the calls that it makes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def calls_of(function: Callable[[], object]) -> int:
    """Return how many calls, of Python's functions and of C's, a function makes once all that it caches is there.

    The garbage of other tests is not collected meanwhile: its finalizers would be counted as calls.
    """
    function()
    count = 0

    def counted(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
