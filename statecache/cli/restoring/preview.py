"""What going back, or a merge, will change, as a person is shown it before it is done: in short, and counted.

It is decided as the verb decides it, on the state as it is read here; the verb is then told to expect that state, so
what is done is what was shown, or it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import UNSET
from rich.text import Text

from statecache.cli.history.diff_view import drawn, json_text, tell_table
from statecache.cli.history.reading import plain_value
from statecache.cli.screen import beside, console, counted, is_terminal, plain, print_labelled, print_table
from statecache.core.history.reader import Point
from statecache.core.own_records import OWN_SCHEMAS
from statecache.core.step.records import STEP_SCHEMA
from statecache.rules.difference import Difference, differences

if TYPE_CHECKING:
    from statecache._async.client import AsyncStateCache
    from statecache.model import Position
    from statecache.rules.three_way import Conflict
    from statecache.rules.versions import Version

SHOWN_MAX = 12
"""How many differences of one key are shown before a person is asked."""
LINES_MAX = 8
"""How many lines of one value are shown."""
KEYS_MAX = 20
"""Of how many keys of a group differences are shown."""
_SIDES = ("base", "ours", "theirs")
_SIGNS = {"created": ("+", "green"), "deleted": ("-", "red"), "changed": ("~", "yellow")}


class KeyChange(NamedTuple):
    """What becomes of one key; `found` is None where it was not looked at, for there are too many keys."""

    key: str
    what: Literal["created", "deleted", "changed"]
    found: Sequence[Difference] | None


async def group_changes(cache: AsyncStateCache, group: str, position: Position, *, steps: bool) -> list[KeyChange]:
    """Return what becomes of the keys of a group that goes back to a position."""
    end, history = cache._view.end_of(None), cache._runtime.history
    now = await history.keys_at(group, Point(), end=end)
    then = {one.key: one for one in await history.keys_at(group, Point.at(position), end=end)}
    changes: list[KeyChange] = []
    for one in now:
        before = then.get(one.key)
        if _is_passed(one, steps=steps) or (before is not None and _is_passed(before, steps=steps)):
            continue
        lives, lived = one.op == "set", before is not None and before.op == "set"
        if not (lives or lived) or (lives and before is not None and lived and one.digest == before.digest):
            continue
        what: Literal["created", "deleted", "changed"] = "changed" if lives and lived else "deleted"
        what = "created" if lived and not lives else what
        found = None
        if what == "changed" and before is not None and len(changes) < KEYS_MAX:
            found = differences(await plain_value(cache, one), await plain_value(cache, before))
        changes.append(KeyChange(one.key, what, found))
    return changes


def tell_differences(found: Sequence[Difference], heading: str = "") -> None:
    """Print differences in short, for a person; for a pipe as `diff` does."""
    if not is_terminal():
        tell_table(found)
        return
    if heading:
        print(heading)
    screen = console()
    screen.print(drawn(found[:SHOWN_MAX], screen, most=LINES_MAX))
    if len(found) > SHOWN_MAX:
        screen.print(Text(f"… {counted(len(found) - SHOWN_MAX, 'more difference')}", "dim"))


def tell_conflicts(conflicts: Sequence[Conflict]) -> None:
    """Print what both sides of a merge changed in their own ways: what it was, and what each made of it."""
    if not conflicts:
        return
    parts = [(one.place, [_part(part) for part in (one.base, one.ours, one.theirs)]) for one in conflicts]
    print("\nBoth changed this, each in its own way:" if is_terminal() else "")
    if not is_terminal():
        print_table(("path", *_SIDES), [[place, *told] for place, told in parts])
        return
    for place, told in parts:
        console().print(beside(Text("!", "bold red"), Text(plain(place), "bold")))
        for side, text in zip(_SIDES, told, strict=True):
            print_labelled(f"    {side}", text or "nothing", width=12, label_style="dim")


def _part(value: Any) -> str:
    return "" if value is UNSET else json_text(value)


def tell_group(changes: Sequence[KeyChange]) -> None:
    """Print what becomes of a group's keys, a line each, and below it the paths of what differs."""
    screen = console()
    for one in changes:
        sign, colour = _SIGNS[one.what]
        paths = [plain(each.place) for each in one.found or ()]
        more = f", and {len(paths) - SHOWN_MAX:,} more" if len(paths) > SHOWN_MAX else ""
        line = Text(f"{sign} ", colour).append(plain(one.key), "bold").append(f"  {one.what}", colour)
        said = f"  {', '.join(paths[:SHOWN_MAX])}{more}" if paths else ""
        screen.print(line.append(said, "none"), overflow="fold", soft_wrap=not is_terminal())


def _is_passed(version: Version, *, steps: bool) -> bool:
    """Whether a change is of a record that stays as it is."""
    return version.schema in OWN_SCHEMAS and not (steps and version.schema == STEP_SCHEMA)
