"""Listing namespaces: pages of names without values, each of which goes on behind the last namespace that it reached.

So at most as many pages are read as there are namespaces, and fewer where these hold few items. A prefix, as far as its
first `*`, bounds which names are read; all else is compared here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statecache.adapters.langgraph.store.documents import namespace, refuse_foreign
from statecache.adapters.langgraph.store.filters import refuse_negative
from statecache.adapters.langgraph.store.names import Labels, beyond_group, group_of, namespace_of, range_of
from statecache.adapters.plans import DOCUMENT, Plan, call

if TYPE_CHECKING:
    from langgraph.store.base import ListNamespacesOp, MatchCondition

    from statecache import State

_PAGE = 500
_ANY = "*"


def list_namespaces(asked: ListNamespacesOp) -> Plan[list[Labels]]:
    """Return the namespaces that hold items and meet all conditions, in order."""
    refuse_negative(asked.limit, asked.offset)
    conditions = asked.match_conditions or ()
    known = max((_literal(one) for one in conditions), key=len, default=())
    found = yield from _namespaces(known)
    met = {one[: asked.max_depth] for one in found if all(_meets(condition, one) for condition in conditions)}
    return sorted(met)[asked.offset : asked.offset + asked.limit]


def _namespaces(prefix: Labels) -> Plan[set[Labels]]:
    """Return the namespaces that hold items, of which none but these with the prefix are looked for."""
    bounds, found = range_of(prefix), set[Labels]()
    after = bounds.after
    while True:
        states: list[State[Any]] = yield from call(
            "list", bounds.prefix, type=DOCUMENT, after=after, before=bounds.before, values=False, limit=_PAGE
        )
        for name in dict.fromkeys(group_of(state) for state in states):
            spelled = namespace_of(name) or (yield from _namespace_within(name))
            if spelled:
                found.add(spelled)
        if len(states) < _PAGE:
            return found
        after = beyond_group(group_of(states[-1]))


def _namespace_within(name: str) -> Plan[Labels | None]:
    """Return the namespace that the newest item of it says, where its name is too long to say it.

    Those that were copied there with their group say another: then nothing tells it, and UsageError is raised.
    """
    for state in (yield from call("list", f"{name}/", type=DOCUMENT, order="newest", limit=1)):
        refuse_foreign([state])
        return namespace(state)
    return None


def _literal(condition: MatchCondition) -> Labels:
    """Return the labels that every namespace begins with that meets the condition."""
    if condition.match_type != "prefix":
        return ()
    path = tuple(condition.path)
    return path[: path.index(_ANY)] if _ANY in path else path


def _meets(condition: MatchCondition, labels: Labels) -> bool:
    path = tuple(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"Unsupported match type: {condition.match_type}; there are prefix and suffix")
    if len(labels) < len(path):
        return False
    part = labels[: len(path)] if condition.match_type == "prefix" else labels[len(labels) - len(path) :]
    return all(wanted in (_ANY, label) for wanted, label in zip(path, part, strict=True))
