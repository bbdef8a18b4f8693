"""A ready state type for an agent's run, and the text that a language model is restarted with.

Everything here is a value: each method gives the next `AgentRun`, which the caller commits. So they are made for
`update` and for `apply=` of a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from statecache.errors import UsageError
from statecache.signal_errors import pass_on

SUMMARY_CHARACTERS_MIN = 300
_TEXT_CHARACTERS = (4000, 1000, 300, 100, 40)
"""The lengths, in characters, to which single texts are shortened, one after the other until the summary fits."""
_KEPT = 5
"""How many items of a part are kept until nothing else makes the summary fit."""


class AgentRun(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an agent's run: its goal, its plan, what is done, and what was learned.

    `plan` and `completed` are names of steps, `results` what they gave, `decisions` and `discoveries` sentences.
    """

    goal: str
    plan: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    results: dict[str, Any] = {}
    decisions: tuple[str, ...] = ()
    discoveries: tuple[str, ...] = ()

    @property
    def remaining(self) -> tuple[str, ...]:
        """The planned steps that are not completed, in the order of the plan."""
        done = set(self.completed)
        return tuple(name for name in self.plan if name not in done)

    @property
    def next_step(self) -> str | None:
        """The first planned step that is not completed, or None."""
        return next(iter(self.remaining), None)

    def with_plan(self, *names: str) -> Self:
        """Return the run with another plan; completed steps stay completed."""
        return msgspec.structs.replace(self, plan=names)

    def with_step(self, name: str, result: Any = None) -> Self:
        """Return the run with a step completed, planned or not, and its result kept; a second call replaces the result.

        None is no result: it is not kept.
        """
        completed = self.completed if name in self.completed else (*self.completed, name)
        others = {one: kept for one, kept in self.results.items() if one != name}
        results = others if result is None else others | {name: result}
        return msgspec.structs.replace(self, completed=completed, results=results)

    def with_decision(self, text: str) -> Self:
        """Return the run with one more decision."""
        return msgspec.structs.replace(self, decisions=(*self.decisions, text))

    def with_discovery(self, text: str) -> Self:
        """Return the run with one more discovery."""
        return msgspec.structs.replace(self, discoveries=(*self.discoveries, text))

    def resume_summary(self, *, characters_max: int = 4000) -> str:
        """Return the run as text for a language model that resumes it, at most `characters_max` characters.

        The same run always gives the same text. Where it does not fit, long texts are shortened first; then the oldest
        discoveries are left out, the oldest of what was done, the oldest decisions, and the end of the plan, the last
        few of each only where there is no other way. The last line says what was cut. Raises UsageError where
        `characters_max` is less than 300.
        """
        if characters_max < SUMMARY_CHARACTERS_MIN:
            raise UsageError(f"characters_max={characters_max} is less than {SUMMARY_CHARACTERS_MIN}")
        for text_max in (characters_max, *_TEXT_CHARACTERS):
            draft = _Draft(self, min(text_max, characters_max), characters_max)
            if draft.fits(_NOTHING):
                return draft.text(_NOTHING)
        return draft.text(draft.fewest_cuts())


class _Cuts(msgspec.Struct, frozen=True):
    """How many items of each part are left out, in the order in which parts are cut."""

    discoveries: int = 0
    done: int = 0
    decisions: int = 0
    planned: int = 0


_NOTHING = _Cuts()


class _Draft:
    """A summary with its texts shortened to one length, from which items may still be left out."""

    def __init__(self, run: AgentRun, text_max: int, characters_max: int) -> None:
        self._characters_max = characters_max
        self._text_max = text_max
        self._shortened = False
        self._goal = self._short(run.goal)
        self._done = [self._line_of(name, run) for name in run.completed]
        self._planned = [f"[ ] {self._short(name)}" for name in run.remaining]
        self._decisions = [f"- {self._short(text)}" for text in run.decisions]
        self._discoveries = [f"- {self._short(text)}" for text in run.discoveries]

    def _short(self, text: str) -> str:
        text = " ".join(text.split())
        if len(text) <= self._text_max:
            return text
        self._shortened = True
        return text[: self._text_max - 1] + "…"

    def _line_of(self, name: str, run: AgentRun) -> str:
        shown = f"[x] {self._short(name)}"
        return f"{shown}: {self._short(_written(run.results[name]))}" if name in run.results else shown

    def fits(self, cuts: _Cuts) -> bool:
        """Return whether the text with these cuts is short enough."""
        return len(self.text(cuts)) <= self._characters_max

    def fewest_cuts(self) -> _Cuts:
        """Return the fewest cuts with which the text fits: all of a part but its last items, before the next is cut."""
        cuts = _NOTHING
        for kept in (_KEPT, 0):
            for part in _Cuts.__struct_fields__:
                least, most = cuts, max(len(getattr(self, f"_{part}")) - kept, 0)

                def fits(count: int, part: str = part, least: _Cuts = least) -> bool:
                    return self.fits(msgspec.structs.replace(least, **{part: count}))

                cuts = msgspec.structs.replace(cuts, **{part: bisect_left(range(most), True, key=fits)})
                if self.fits(cuts):
                    return cuts
        return cuts

    def text(self, cuts: _Cuts) -> str:
        """Return the text with these cuts."""
        known = len(self._done) + len(self._planned)
        steps = self._done[cuts.done :] + _next(self._planned[: len(self._planned) - cuts.planned])
        parts = [
            f"Goal: {self._goal}",
            *_part(f"Steps ({len(self._done)} of {known} done):", steps),
            *_part("Decisions:", self._decisions[cuts.decisions :]),
            *_part("Discoveries:", self._discoveries[cuts.discoveries :]),
            *self._said_of(cuts),
        ]
        return "\n".join(parts) + "\n"

    def _said_of(self, cuts: _Cuts) -> list[str]:
        counts = {
            "discoveries": cuts.discoveries,
            "done steps": cuts.done,
            "decisions": cuts.decisions,
            "planned steps": cuts.planned,
        }
        left_out = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        said = [f"texts shortened to {self._text_max}"] if self._shortened else []
        said += [f"left out: {left_out}"] if left_out else []
        return [f"(Cut to {self._characters_max} characters: {'; '.join(said)}.)"] if said else []


def _part(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []


def _next(lines: Sequence[str]) -> list[str]:
    return [f"{line}{'' if at else '  <- next'}" for at, line in enumerate(lines)]


def _written(result: Any) -> str:
    """Return a result as JSON with sorted keys, or its type's name where JSON cannot hold it."""
    try:
        return msgspec.json.encode(msgspec.to_builtins(result, str_keys=True), order="deterministic").decode()
    except Exception as error:  # users' own classes take part
        pass_on(error)
        return f"({type(result).__name__})"
