"""A process that adds to a chat of LlamaIndex, and tells on stdout what it has done: to run by others, or be killed.

python -m tests.support.llama_index_agent KEY NAME COUNT     adds that many messages, without await
"""

from __future__ import annotations

import sys

from llama_index.core.llms import ChatMessage

from statecache import StateCache
from statecache.adapters.llama_index import StateCacheChatStore


def _main(key: str, name: str, count: str) -> None:
    with StateCache() as cache:
        store = StateCacheChatStore(cache)
        for number in range(int(count)):
            store.add_message(key, ChatMessage(content=f"{name} {number}"))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
