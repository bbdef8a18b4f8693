"""Stores for LlamaIndex: documents and indices by key, and what chats hold, hot in Redis and durable in Postgres.

    from statecache.adapters.llama_index import StateCacheKVStore

    store = StateCacheKVStore(cache)                            # on a StateCache, an AsyncStateCache, or settings
    documents = KVDocumentStore(store)                          # or KVIndexStore, IngestionCache(cache=store), …

    llama-index/docstore%2Fdata/kv/42     a value, with its key; a collection is a group, so 250 values are a commit

    from statecache.adapters.llama_index import StateCacheChatStore

    store = StateCacheChatStore(cache)
    memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="42")

    llama-index-chat/42                            the head: how many messages there are, in how many pages
    llama-index-chat/42/pages/9c1f04e2/000001      a page: some of the messages, in order; a chat is a group

All are JSON. A value that JSON's plain data cannot hold exactly is kept as a text in `{"$json": …}`.
It needs the extra `statecache[llama-index]`.
"""

from __future__ import annotations

from statecache.adapters.versions import require

require("llama-index-core", (0, 14, 25), (0, 15), what="a store for LlamaIndex", extra="llama-index")

from llama_index.core.storage.chat_store.loading import RECOGNIZED_CHAT_STORES  # noqa: E402

from statecache.adapters.llama_index.chat_store import StateCacheChatStore  # noqa: E402
from statecache.adapters.llama_index.kv_store import StateCacheKVStore  # noqa: E402

RECOGNIZED_CHAT_STORES.setdefault(StateCacheChatStore.class_name(), StateCacheChatStore)  # type: ignore[arg-type]

__all__ = ["StateCacheChatStore", "StateCacheKVStore"]
