"""Makes docs/reference.md from what the code says of itself: docstrings, signatures, errors, commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import typer

import statecache
import statecache.testing
from statecache._sync.feed import Changes, Watch
from statecache._sync.until_stopped import UntilStopped
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.clients import OnClients
from statecache.adapters.event_loops import OnEventLoops
from statecache.adapters.langgraph import StateCacheSaver, StateCacheStore
from statecache.adapters.llama_index import StateCacheChatStore, StateCacheKVStore
from statecache.adapters.openai_agents import StateCacheSession
from statecache.adapters.prometheus import PrometheusObserver
from statecache.adapters.pydantic_ai import StateCacheConversationStore
from statecache.cli.app import app
from statecache.errors import StateCacheError
from statecache.testing import plugin
from statecache.testing.embedded import Servers

HEAD = """# Reference

Generated from the code by `make sync`. `AsyncStateCache` and `StateCache` have the same verbs; the
asynchronous ones are awaited, and `list` and `transaction` are used with `async for` and `async with`.
"""
SETTINGS = """## Settings

Keyword arguments of the clients and of `Settings`, or variables `STATECACHE_…`: [settings](settings.md).
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *_clients(), *_values(), *_errors(), SETTINGS, *_adapters(), *_testing(), *_commands()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _prose(text: str | None) -> str:
    """Return a docstring as paragraphs of Markdown; what is indented in it stays as it is."""
    text = inspect.cleandoc(text or "").replace("\b\n", "")
    return "\n\n".join(paragraph.rstrip() for paragraph in text.split("\n\n"))


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    taken = [one for one in signature.parameters.values() if one.name != "unknown"]  # that is taken to be refused
    text = str(signature.replace(parameters=taken))
    shown = re.sub(r"(: |-> )(['\"])(.*?)\2(?=[,)= ]|$)", r"\1\3", text)
    shown = re.sub(r"<[\w.]+ object at 0x\w+>", "…", shown)
    return name + re.sub(r"\(self(, )?", "(", shown)


def members(kind: type, *, above: type = object) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class documents, but those that `above` has as well."""
    for name in sorted(name for name in dir(kind) if not name.startswith("_") and not hasattr(above, name)):
        member = inspect.getattr_static(kind, name)
        if (inspect.isfunction(member) or isinstance(member, property)) and member.__doc__:
            yield name, member


def _member(name: str, member: Any, *, of: str = "") -> str:
    """Return a method's or a property's section; `of` is what stands before its name in the heading."""
    if isinstance(member, property):
        result = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
        return f"### {of}{name}\n\n`{name}: {result}`\n\n{_prose(member.__doc__)}"
    return f"### {of}{name}\n\n`{_signature(name, member)}`\n\n{_prose(member.__doc__)}"


def _class(kind: type, *, above: type = object) -> Iterator[str]:
    """Yield a class's section and those of its members; with `above`, of those that it has beyond that class's."""
    shown = kind.__name__
    yield f"## {shown}, Async{shown}\n\n{_prose(kind.__doc__)}"
    for name, member in members(kind, above=above):
        yield _member(name, member, of=f"{shown}.")


def _clients() -> Iterator[str]:
    kind = statecache.StateCache
    yield f"## StateCache, AsyncStateCache\n\n{_prose(kind.__doc__)}\n\n`{_signature('StateCache', kind)}`"
    for name, member in members(kind):
        yield _member(name, member)
    yield from _class(statecache.Namespace, above=statecache.StateCache)
    yield from _class(statecache.Lease, above=statecache.Namespace)
    for one in (statecache.Transaction, Changes, Watch, UntilStopped):
        yield from _class(one)


def _testing() -> Iterator[str]:
    yield f"## statecache.testing\n\n{_prose(statecache.testing.__doc__)}"
    for name in sorted(statecache.testing.__all__):
        yield _member(name, getattr(statecache.testing, name), of="statecache.testing.")
    yield f"### statecache.testing.servers(…)\n\n{_prose(Servers.__doc__)}"
    for name, member in members(Servers):
        yield "#" + _member(name, member)
    yield f"## Fixtures of pytest\n\n{_prose(plugin.__doc__)}"
    for name, member in vars(plugin).items():
        if name.startswith("statecache_"):
            yield f"### {name}\n\n{_prose(member.__doc__)}"


def _prometheus() -> Iterator[str]:
    yield f"## statecache.adapters.prometheus.PrometheusObserver\n\n{_prose(PrometheusObserver.__doc__)}"
    yield f"`{_signature('PrometheusObserver', PrometheusObserver)}`"
    for name, member in members(PrometheusObserver):
        yield _member(name, member, of="PrometheusObserver.")


def _adapters() -> Iterator[str]:
    yield from _prometheus()
    yield from _langgraph()
    yield from _openai_agents()
    yield from _on_event_loops(StateCacheSessionService)
    yield from _on_event_loops(StateCacheConversationStore)
    yield from _llama_index()


def _langgraph() -> Iterator[str]:
    yield from _of_langgraph(StateCacheSaver)
    yield from _of_langgraph(StateCacheStore)


def _of_langgraph(kind: type[StateCacheSaver] | type[StateCacheStore]) -> Iterator[str]:
    """Yield the sections of a saver or a store; of each method, the one that is not awaited stands for both."""
    name = kind.__name__
    yield f"## statecache.adapters.langgraph.{name}\n\n{_prose(kind.__doc__)}"
    yield f"`{_signature(name, kind)}`"
    made = kind.from_conn_string
    yield f"### {name}.from_conn_string\n\n`{_signature('from_conn_string', made)}`\n\n{_prose(made.__doc__)}"
    for member_name, member in members(kind):
        if member_name in vars(kind) | vars(OnClients) and not member.__doc__.startswith("Do what"):
            yield _member(member_name, member, of=f"{name}.")


def _openai_agents() -> Iterator[str]:
    yield f"## statecache.adapters.openai_agents.StateCacheSession\n\n{_prose(StateCacheSession.__doc__)}"
    yield f"`{_signature('StateCacheSession', StateCacheSession)}`"
    for name in ("from_settings", "from_url"):
        yield _member(name, getattr(StateCacheSession, name), of="StateCacheSession.")
    for name, member in members(StateCacheSession):
        yield _member(name, member, of="StateCacheSession.")


def _on_event_loops(kind: type[StateCacheSessionService] | type[StateCacheConversationStore]) -> Iterator[str]:
    yield f"## {kind.__module__.rpartition('.')[0]}.{kind.__name__}\n\n{_prose(kind.__doc__)}"
    yield f"`{_signature(kind.__name__, kind)}`"
    for name in ("from_settings", "from_url"):
        yield _member(name, getattr(kind, name), of=f"{kind.__name__}.")
    for name, member in members(kind):
        if name in vars(kind) | vars(OnEventLoops):
            yield _member(name, member, of=f"{kind.__name__}.")


def _llama_index() -> Iterator[str]:
    """Yield the sections of a store; of each method, the one that is not awaited stands for both."""
    for kind in (StateCacheKVStore, StateCacheChatStore):
        yield f"## statecache.adapters.llama_index.{kind.__name__}\n\n{_prose(kind.__doc__)}"
        yield f"`{_signature(kind.__name__, kind)}`"
        yield _member("from_url", kind.from_url, of=f"{kind.__name__}.")
        own = {name for name in vars(kind) | vars(OnClients) if not name.startswith("model_")}
        for name, member in members(kind):
            if name in own and not (member.__doc__ or "").startswith("Do what"):
                yield _member(name, member, of=f"{kind.__name__}.")


def _values() -> Iterator[str]:
    yield "## Values"
    for name in sorted(statecache.__all__):
        kind = getattr(statecache, name)
        if not isinstance(kind, type):
            yield f"### {name}\n\n`{_named(kind)}`"
        elif issubclass(kind, msgspec.Struct):
            fields = [
                f"| `{field.name}` | `{_named(field.type)}` | {_default(field)} |"
                for field in msgspec.structs.fields(kind)
            ]
            table = "\n".join(["| field | type | default |", "|---|---|---|", *fields])
            yield f"### {name}\n\n{_prose(kind.__doc__)}\n\n{table}"
            for member_name, member in members(kind):
                yield "#" + _member(member_name, member, of=f"{name}.")
        elif kind.__module__ == "statecache.model":
            yield f"### {name}\n\n{_prose(kind.__doc__)}"


def _named(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not getattr(kind, "__args__", None) else str(kind)
    text = re.sub(r"(typing|datetime|statecache\.model)\.", "", text.replace("|", "or"))
    return re.sub(r"^Optional\[(.*)\]$", r"\1 or None", text)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return f"`{made!r}`"


def _errors() -> Iterator[str]:
    yield "## Errors\n\nThe message, with its facts in braces; each fact is an attribute."
    yield "\n".join(_branch(StateCacheError, 0))


def _branch(kind: type[StateCacheError], depth: int) -> Iterator[str]:
    hint = f" *{kind.hint}*" if kind.hint else ""
    yield f"{'  ' * depth}* `{kind.__name__}`: {' '.join(inspect.cleandoc(kind.__doc__ or '').split())}{hint}"
    for one in sorted((one for one in kind.__subclasses__() if one.__name__ in statecache.__all__), key=str):
        yield from _branch(one, depth + 1)


def _commands() -> Iterator[str]:
    yield "## Commands"
    yield from _command("statecache", typer.main.get_command(app))


def _command(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        for name in sorted(inner):
            yield from _command(f"{path} {name}", inner[name])
        return
    rows = [row for parameter in command.params if (row := _parameter(parameter))]
    table = "\n".join(["| | |", "|---|---|", *rows]) if rows else ""
    arguments = " ".join((one.metavar or one.name.upper()) for one in command.params if not one.opts[0].startswith("-"))
    yield f"### {path} {arguments}".rstrip() + f"\n\n{_prose(command.help)}\n\n{table}"


def _parameter(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-") or parameter.name == "help":
        return ""
    return f"| `{', '.join([*parameter.opts, *parameter.secondary_opts])}` | {parameter.help or ''} |"
