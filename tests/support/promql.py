"""PromQL as far as config/alerts.yml uses it, over recorded samples: the rules are tried out without Prometheus.

`promql_parser` parses; what is computed here is computed as Prometheus does: staleness after five minutes or at a stale
marker, counters that begin anew, the extrapolation of `rate` and `increase`. Whatever else an expression uses is
refused. `promtool`, where it is installed, is asked the same by the same tests.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, nan
from typing import Any, NamedTuple

import promql_parser as ast

LOOKBACK_S = 300.0
NAME = "__name__"

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_COMPARES: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_COMPUTES: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else nan if not a else inf,
}  # fmt: skip
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "max": max, "min": min, "count": lambda values: float(len(values)),
}  # fmt: skip
_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "MatchOp.Equal": operator.eq,
    "MatchOp.NotEqual": operator.ne,
    "MatchOp.Re": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "MatchOp.NotRe": lambda value, pattern: re.fullmatch(pattern, value) is None,
}


class Series(NamedTuple):
    """One recorded series: a sample each `every_s` from 0 on; None where there was none, `stale` where it ended."""

    labels: Labels
    samples: Sequence[float | str | None]
    every_s: float

    def between(self, first_s: float, last_s: float) -> list[tuple[float, float | str]]:
        """Return the samples of these seconds, both ends among them, with their times."""
        found = ((at * self.every_s, sample) for at, sample in enumerate(self.samples))
        return [(when, sample) for when, sample in found if sample is not None and first_s <= when <= last_s]


def evaluate(expression: Any, series: Sequence[Series], at_s: float) -> Value:
    """Return what an expression gives at that second; raise TypeError for PromQL that is not known here."""
    match expression:
        case ast.NumberLiteral():
            return expression.val
        case ast.ParenExpr():
            return evaluate(expression.expr, series, at_s)
        case ast.VectorSelector():
            return _selected(expression, series, at_s)
        case ast.AggregateExpr():
            return _aggregated(expression, _vector(evaluate(expression.expr, series, at_s)))
        case ast.BinaryExpr():
            sides = (evaluate(side, series, at_s) for side in (expression.lhs, expression.rhs))
            return _combined(str(expression.op), expression.modifier, *sides)
        case ast.Call():
            return _called(expression, series, at_s)
    raise TypeError(f"{type(expression).__name__}: {expression}")


def metrics_of(expression: str) -> dict[str, set[str]]:
    """Return the metrics that an expression reads, each with the labels by which it selects."""
    found: dict[str, set[str]] = {}

    def note(node: Any) -> None:
        if isinstance(node, ast.VectorSelector):
            found.setdefault(node.name or "", set()).update(one.name for one in node.matchers.matchers)

    ast.walk(ast.parse(expression), note)
    return found


def _selecting(selector: Any, series: Sequence[Series]) -> list[Series]:
    if selector.at is not None:
        raise TypeError(f"@ in {selector}")
    wanted = [(one.name, _MATCHES[str(one.op)], one.value) for one in selector.matchers.matchers]
    found = []
    for one in series:
        labels = dict(one.labels)
        if labels[NAME] == selector.name and all(fits(labels.get(name, ""), value) for name, fits, value in wanted):
            found.append(one)
    return found


def _selected(selector: Any, series: Sequence[Series], at_s: float) -> Vector:
    moment = at_s - (selector.offset.total_seconds() if selector.offset else 0.0)
    found: Vector = {}
    for one in _selecting(selector, series):
        seen = one.between(moment - LOOKBACK_S, moment)
        if seen and not isinstance(seen[-1][1], str):
            found[one.labels] = seen[-1][1]
    return found


def _vector(value: Value) -> Vector:
    if isinstance(value, float):
        raise TypeError("a number where a vector is needed")
    return value


def _without_name(labels: Labels) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != NAME)


def _aggregated(expression: Any, vector: Vector) -> Vector:
    modifier = expression.modifier
    if modifier is not None and str(modifier.type) != "AggModifierType.By":
        raise TypeError(f"without in {expression}")
    kept = set(modifier.labels) if modifier is not None else set()
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(frozenset(pair for pair in labels if pair[0] in kept), []).append(value)
    return {labels: _AGGREGATES[str(expression.op)](values) for labels, values in groups.items()}


def _combined(op: str, modifier: Any, left: Value, right: Value) -> Value:
    if modifier is not None and (modifier.matching is not None or modifier.return_bool):
        raise TypeError(f"a modifier of {op}")
    if op in ("and", "or", "unless"):
        return _joined(op, _vector(left), _vector(right))
    pairs = _pairs(left, right)
    if op in _COMPARES:
        return {labels: one for labels, (one, other) in pairs.items() if _COMPARES[op](one, other)}
    computed = {_without_name(labels): _COMPUTES[op](one, other) for labels, (one, other) in pairs.items()}
    return computed if isinstance(left, dict) or isinstance(right, dict) else computed[frozenset()]


def _joined(op: str, left: Vector, right: Vector) -> Vector:
    there = {_without_name(labels) for labels in right}
    if op == "or":
        here = {_without_name(labels) for labels in left}
        return left | {labels: value for labels, value in right.items() if _without_name(labels) not in here}
    return {labels: value for labels, value in left.items() if (_without_name(labels) in there) == (op == "and")}


def _pairs(left: Value, right: Value) -> dict[Labels, tuple[float, float]]:
    """Return what stands on both sides, by the labels of the left one; a number stands beside every sample."""
    if isinstance(left, float):
        if isinstance(right, float):
            return {frozenset(): (left, right)}
        return {labels: (left, value) for labels, value in right.items()}
    if isinstance(right, float):
        return {labels: (value, right) for labels, value in left.items()}
    others = {_without_name(labels): value for labels, value in right.items()}
    found = ((labels, value, others.get(_without_name(labels))) for labels, value in left.items())
    return {labels: (value, other) for labels, value, other in found if other is not None}


def _called(call: Any, series: Sequence[Series], at_s: float) -> Value:
    name, arguments = call.func.name, call.args
    if name in ("rate", "increase"):
        return _grown(arguments[0], series, at_s, per_second=name == "rate")
    if name == "absent" and isinstance(arguments[0], ast.BinaryExpr):
        return {} if evaluate(arguments[0], series, at_s) else {frozenset(): 1.0}
    if name == "histogram_quantile":
        return _quantiles(arguments[0].val, _vector(evaluate(arguments[1], series, at_s)))
    raise TypeError(f"{name} in {call}")


def _grown(selector: Any, series: Sequence[Series], at_s: float, *, per_second: bool) -> Vector:
    range_s = selector.range.total_seconds()
    moment = at_s - (selector.vector_selector.offset or selector.range * 0).total_seconds()
    found: Vector = {}
    for one in _selecting(selector.vector_selector, series):
        seen = [(when, value) for when, value in one.between(moment - range_s, moment) if not isinstance(value, str)]
        if len(seen) > 1:
            grown = _extrapolated(seen, moment - range_s, moment)
            found[_without_name(one.labels)] = grown / range_s if per_second else grown
    return found


def _extrapolated(seen: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return a counter's growth, extrapolated to the ends of its range where the samples reach near to them."""
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    grown = last - first
    for (_, before), (_, after) in pairwise(seen):
        grown += before if after < before else 0.0
    sampled = last_s - first_s
    between = sampled / (len(seen) - 1)
    before_s, after_s = first_s - begin_s, end_s - last_s
    if grown > 0:
        before_s = min(before_s, sampled * first / grown)
    reached = sampled + sum(ends if ends < between * 1.1 else between / 2 for ends in (before_s, after_s))
    return grown * reached / sampled


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = dict(labels)["le"]
        groups.setdefault(_without_name(labels - {("le", bound)}), []).append((float(bound), value))
    return {labels: _quantile(quantile, sorted(group)) for labels, group in groups.items()}


def _quantile(quantile: float, buckets: Sequence[tuple[float, float]]) -> float:
    rank = quantile * buckets[-1][1]
    if not rank:
        return nan
    at = next(at for at, (_, count) in enumerate(buckets) if count >= rank)
    if buckets[at][0] == inf:
        return buckets[-2][0]
    low, below = buckets[at - 1] if at else (0.0, 0.0)
    bound, count = buckets[at]
    return low + (bound - low) * (rank - below) / (count - below)


class Rule(NamedTuple):
    """An alerting rule: an expression that has to hold for so many seconds."""

    alert: str
    expression: Any
    for_s: float


def firing(rules: Sequence[Rule], series: Sequence[Series], at_s: float, every_s: float) -> set[str]:
    """Return the names of the alerts that fire at that second, where rules are evaluated every so many seconds."""
    return {rule.alert for rule in rules if _fires(rule, series, at_s, every_s)}


def _fires(rule: Rule, series: Sequence[Series], at_s: float, every_s: float) -> bool:
    """Return whether the expression has held for the same labels at every evaluation of the time that it has to."""
    held: set[Labels] | None = None
    for back in range(int(rule.for_s // every_s) + 1):
        now = at_s - back * every_s
        found = _vector(evaluate(rule.expression, series, now)) if now >= 0 else {}
        holds = {_without_name(labels) for labels in found}
        held = holds if held is None else held & holds
        if not held:
            return False
    return True


def series_from(name: str, values: str, every_s: float) -> Series:
    """Return a series as promtool's tests write it: `name{a="b"}`, and values like `1 2x3 0+5x9 _x4 stale`."""
    metric, _, inside = name.partition("{")
    labels = {(key, value) for key, value in re.findall(r'(\w+)="([^"]*)"', inside)} | {(NAME, metric)}
    samples: list[float | str | None] = []
    for word in values.split():
        value, _, times = word.partition("x")
        first, _, step = value.partition("+")
        if value == "_":
            samples += [None] * int(times or 1)
        elif value == "stale":
            samples.append(value)
        else:
            samples += [float(first) + at * float(step or 0) for at in range(int(times or 0) + 1)]
    return Series(frozenset(labels), samples, every_s)
