"""The holder of a lock is paused for longer than its lease, another one takes over, the first wakes: it is refused.

python examples/paused_holder.py
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

from statecache import LeaseLost, StaleToken, StateCache
from where import somewhere

TTL_S = 1.0


def holder(key: str) -> None:
    """Take the lock, be paused in the middle of the work, and go on as if nothing had happened."""
    with StateCache() as cache:
        try:
            with cache.lock(key, ttl=TTL_S) as lease:
                lease.set(key, "the first begins")
                print(f"first: I hold the lock, token {lease.token}", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)  # a long garbage collection, a laptop's lid, a frozen machine
                lease.set(key, "the first, late")
        except (LeaseLost, StaleToken) as refused:
            print(f"first: refused with {type(refused).__name__}", flush=True)


def main() -> None:
    """Let a holder be paused, take over, and wake it."""
    key = f"runs/example-{secrets.token_hex(4)}"
    with somewhere(), StateCache() as cache:
        first = subprocess.Popen([sys.executable, __file__, key])
        os.waitpid(first.pid, os.WUNTRACED)
        print("first: (paused)", flush=True)
        with cache.lock(key, ttl=TTL_S) as lease:
            print(f"second: I hold the lock, token {lease.token}", flush=True)
            lease.set(key, "the second's work")
            first.send_signal(signal.SIGCONT)
            first.wait()
        state = cache.get(key, read="primary")
        assert state is not None
        print(f"what stands: {state.value}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        holder(*sys.argv[1:])
    else:
        main()
