"""A chat history: a key for every message beside a head, written together, so that none is lost and none is rewritten.

python examples/chat.py
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

import msgspec

from statecache import AlreadyExists, StateCache, VersionConflict
from where import somewhere

MESSAGES = 10


class Head(msgspec.Struct, frozen=True):
    messages: int = 0


class Message(msgspec.Struct, frozen=True):
    who: str
    text: str


def append(cache: StateCache, chat: str, message: Message) -> int:
    """Append a message and return its number: the head says which is next, and both are one commit."""
    while True:
        head = cache.get(chat, type=Head, read="primary")
        number = head.value.messages + 1 if head else 1
        name = f"{chat}/messages/{number:06}"
        try:
            with cache.transaction(chat, name) as tx:
                tx.create(name, message)
                tx.set(chat, Head(number))
        except (AlreadyExists, VersionConflict):
            continue  # somebody else has said something meanwhile
        return number


def say(cache: StateCache, chat: str, who: str) -> None:
    """Say something several times."""
    for number in range(1, MESSAGES + 1):
        append(cache, chat, Message(who, f"message {number} of {who}"))


def main() -> None:
    """Let three speak at once, and then read the history."""
    chat = f"chats/example-{secrets.token_hex(4)}"
    with somewhere(), StateCache() as cache, ThreadPoolExecutor() as threads:
        for talk in [threads.submit(say, cache, chat, who) for who in ("user", "model", "tool")]:
            talk.result()
        history = list(cache.list(f"{chat}/messages/", type=Message))
        head = cache.get(chat, type=Head, read="primary")
        assert head is not None
        print(f"the head counts {head.value.messages} messages, {len(history)} are there")
        print(f"each written once: {all(state.version == 1 for state in history)}")
        for who in ("user", "model", "tool"):
            said = [state.value.text for state in history if state.value.who == who]
            print(
                f"{who}: {len(said)}, in order: {said == [f'message {at} of {who}' for at in range(1, MESSAGES + 1)]}"
            )
        print(f"the last one: {history[-1].key.removeprefix(chat)}: {history[-1].value.text}")


if __name__ == "__main__":
    main()
