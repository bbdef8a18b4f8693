"""What differs between two plain values, by paths, and the later value made of the earlier one and its differences.

Values are compared as `sameness` says, and lists as `alignment` says. A path that was **removed** is one of the value
before, a path that was **added** or **changed** one of the value after; inside of lists that differ the two count
differently. So each difference is true by itself: what was removed stood at that path, and what was added or changed
stands there now. Nothing is told twice: a part that was added is one difference, with all that is in it.

What differs is followed into dicts and lists on both sides. A part is one difference, as a whole, where it is

* of another kind than before, or a dict with other keys than text and 64-bit integers;
* a dict in a list that is nothing like the one it replaces: they have no key in common;
* deeper than LEVELS_MAX; no value that is stored goes deeper;
* a part with so many differences that their paths came to more than STEPS_MAX steps.

The order of a dict's keys is no difference. UNSET stands for no value at all, as before a state's first version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from statecache.errors import UsageError
from statecache.rules.alignment import aligned
from statecache.rules.paths import Path, Step, text_of
from statecache.rules.sameness import Labels, is_dict, is_list
from statecache.value_loss import NESTING_MAX

LEVELS_MAX = NESTING_MAX
"""How many steps a path has at most."""
STEPS_MAX = 1_000_000
"""How many steps the paths of all differences have at most."""

Part = tuple[Step, Step, Any, Any, bool]
"""A step in the value before and in the one after, what each leads to, and whether to compare that as a whole."""


class Difference(msgspec.Struct, frozen=True):
    """One difference: at `path` something was added, removed or changed. UNSET stands where there is nothing.

    The path of what was removed is one of the value before, any other one of the value after.
    """

    path: Path
    op: Literal["added", "removed", "changed"]
    before: Any = UNSET
    after: Any = UNSET

    @property
    def place(self) -> str:
        """The path as text."""
        return text_of(self.path)


def differences(before: Any, after: Any) -> tuple[Difference, ...]:
    """Return all differences of two values, in the order in which they stand there; they share parts with the values.

    Takes time that grows with the size of the values, whatever they hold.
    """
    labels = Labels(before, after)
    found: list[Difference] = []
    steps = 0
    todo: list[tuple[Path, Path, Any, Any, bool]] = [((), (), before, after, False)]
    while todo:
        old_path, path, old, new, whole = todo.pop()
        if labels.same(old, new):
            continue
        parts = None if whole or len(path) >= LEVELS_MAX else _parts(old, new, labels)
        if parts is None or steps + len(parts) * (len(path) + 1) > STEPS_MAX:
            found.append(_difference(old_path, path, old, new))
            continue
        steps += len(parts) * (len(path) + 1)
        for old_step, step, inner_old, inner_new, whole in reversed(parts):  # the first is taken next
            new_path = (*path, step)
            same_path = old_path is path and old_step == step
            todo.append((new_path if same_path else (*old_path, old_step), new_path, inner_old, inner_new, whole))
    return tuple(found)


def _difference(old_path: Path, path: Path, old: Any, new: Any) -> Difference:
    if new is UNSET:
        return Difference(old_path, "removed", old)
    return Difference(path, "added" if old is UNSET else "changed", old, new)


def _parts(old: Any, new: Any, labels: Labels) -> list[Part] | None:
    """Return the parts of two containers that differ, or None where they can only be compared as a whole."""
    if is_dict(old) and is_dict(new):
        both = [(key, key, part, new.get(key, UNSET), False) for key, part in old.items()]
        both += [(key, key, UNSET, part, False) for key, part in new.items() if key not in old]
        return [part for part in both if not labels.same(part[2], part[3])]
    if not (is_list(old) and is_list(new)):
        return None
    parts: list[Part] = []
    at = other = 0
    for end, other_end in [*aligned(old, new, labels), (len(old), len(new))]:
        parts += [(gone, gone, old[gone], UNSET, False) for gone in range(at, end)]
        parts += [(came, came, UNSET, new[came], False) for came in range(other, other_end)]
        if end < len(old) and not labels.same(old[end], new[other_end]):
            parts.append((end, other_end, old[end], new[other_end], not labels.likeness(old[end], new[other_end])))
        at, other = end + 1, other_end + 1
    return parts


# The later value, made of the earlier one


Edits = dict[Step, Any]
"""What is edited below a part, by the step that leads there: a Difference, or the edits below that."""
Inner = tuple[Step, Edits, Edits]
"""The step to a part with edits below it: what was removed there, and what was added or changed."""


def applied(before: Any, found: Iterable[Difference]) -> Any:
    """Return the value after, made of the one before and all differences, in any order; nothing is changed in place.

    The result shares what did not differ with the value before. Raises UsageError for a difference that does not fit:
    its path leads nowhere, or something stands where it adds. Whether that is what it says stood there is not asked.
    """
    removed: Edits = {}
    placed: Edits = {}
    for one in found:
        _note(one, removed if one.op == "removed" else placed)
    top, inner = _edited({} if before is UNSET else {"": before}, removed, placed)
    todo = [(top, one) for one in inner]
    while todo:
        out, (step, removed, placed) = todo.pop()
        out[step], inner = _edited(out[step], removed, placed)
        todo += [(out[step], one) for one in inner]
    return top.get("", UNSET)


def _note(one: Difference, edits: Edits) -> None:
    *above, last = ("", *one.path)
    for step in above:
        edits = edits.setdefault(step, {})
        if isinstance(edits, Difference):
            raise _misfit(one)
    if edits.setdefault(last, one) is not one:
        raise _misfit(one)


def _edited(part: Any, removed: Edits, placed: Edits) -> tuple[Any, list[Inner]]:
    """Return a copy of a container that is edited, and what is still to be edited in it."""
    if is_dict(part):
        return _edited_dict(part, removed, placed)
    if is_list(part):
        return _edited_list(part, removed, placed)
    raise _misfit({**removed, **placed})


def _edited_dict(part: dict[Step, Any], removed: Edits, placed: Edits) -> tuple[Any, list[Inner]]:
    out = dict(part)
    inner: dict[Step, Inner] = {}
    for step, edit in [*removed.items(), *placed.items()]:
        adds = isinstance(edit, Difference) and edit.op == "added"
        if (step in out) is adds:
            raise _misfit(edit)
        if not isinstance(edit, Difference):
            inner[step] = (step, removed.get(step, {}), placed.get(step, {}))
        elif edit.op == "removed":
            del out[step]
        else:
            out[step] = edit.after
    return out, [*inner.values()]


def _edited_list(part: list[Any], removed: Edits, placed: Edits) -> tuple[Any, list[Inner]]:
    out: list[Any] = []
    inner: list[Inner] = []
    kept = [at for at in range(len(part)) if not isinstance(removed.get(at), Difference)]
    added = {step for step, edit in placed.items() if isinstance(edit, Difference) and edit.op == "added"}
    _refuse_others(removed, range(len(part)))
    _refuse_others(placed, range(len(kept) + len(added)))
    left = iter(kept)
    for step in range(len(kept) + len(added)):
        edit = placed.get(step)
        at = -1 if step in added else next(left)
        if isinstance(edit, Difference):
            out.append(edit.after)
            continue
        out.append(part[at])
        if edit or at in removed:
            inner.append((step, removed.get(at, {}), edit or {}))
    return out, inner


def _refuse_others(edits: Edits, steps: range) -> None:
    for step, edit in edits.items():
        if not isinstance(step, int) or step not in steps:
            raise _misfit(edit)


def _misfit(edit: Any) -> UsageError:
    while not isinstance(edit, Difference):
        edit = next(iter(edit.values()))
    return UsageError(f"a difference does not fit the value: {edit.place} cannot be {edit.op} there")
