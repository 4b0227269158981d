"""Spark's filters on time, kind and the names of queues, taken over by the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from laneway.pipeline.options import micros
from laneway.pipeline.selection import FAR_FUTURE_MS, FAR_PAST_MS, Catalogue, Selection

_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, given: bool(value == given),
    GreaterThan: lambda value, given: bool(value > given),
    GreaterThanOrEqual: lambda value, given: bool(value >= given),
    LessThan: lambda value, given: bool(value < given),
    LessThanOrEqual: lambda value, given: bool(value <= given),
    StringStartsWith: lambda value, given: bool(value.startswith(given)),
    StringEndsWith: lambda value, given: bool(value.endswith(given)),
    StringContains: lambda value, given: given in value,
}


def push(filters: Iterable[Filter], selection: Selection, catalogue: Catalogue) -> tuple[Selection, list[Filter]]:
    """The selection with all filters that it can hold, and those that Spark has to try itself."""
    left = []
    for one in filters:
        attribute = _attribute(one)
        if attribute == "kind":
            selection = selection.with_kinds(lambda name, one=one: holds(one, name) is True)  # type: ignore[misc]
        elif attribute in ("vhost", "queue", "tier"):
            at = ("vhost", "queue", "tier").index(attribute)
            selection = selection.with_queues(
                catalogue,
                lambda _, names, one=one, at=at: holds(one, None if names is None else names[at]) is True,  # type: ignore[misc]
            )
        elif attribute == "time" and (bounds := _bounds(one)) is not None:
            selection = selection.between(*bounds)
        elif not (attribute == "time" and isinstance(one, IsNotNull)):
            left.append(one)
    return selection, left


def holds(one: Filter, value: str | None) -> bool | None:
    """What SQL says of this filter on this value; None is its null."""
    if isinstance(one, Not):
        inner = holds(one.child, value)
        return None if inner is None else not inner
    if isinstance(one, IsNull):
        return value is None
    if isinstance(one, IsNotNull):
        return value is not None
    if isinstance(one, EqualNullSafe):
        return bool(value == one.value)
    if value is None:
        return None
    if isinstance(one, In):
        return True if value in one.value else None if None in one.value else False
    given = one.value  # type: ignore[attr-defined]
    return None if given is None else _COMPARISONS[type(one)](value, given)


def _attribute(one: Filter) -> str | None:
    inner = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    is_known = isinstance(inner, In | IsNull | IsNotNull | EqualNullSafe) or type(inner) in _COMPARISONS
    return path[0] if len(path) == 1 and is_known else None


def _bounds(one: Filter) -> tuple[int, int] | None:
    """A filter on time as the first and the last millisecond for which it holds; None if it is none of that kind."""
    given = getattr(one, "value", None)
    if not isinstance(given, datetime) or given.tzinfo is None:
        return None
    of_us = micros(given)
    below, above = of_us // 1000, -(-of_us // 1000)  # the whole milliseconds beside it, or itself twice
    if isinstance(one, EqualTo | EqualNullSafe):
        return (below, above) if below == above else (1, 0)
    if isinstance(one, GreaterThan):
        return below + 1, FAR_FUTURE_MS
    if isinstance(one, GreaterThanOrEqual):
        return above, FAR_FUTURE_MS
    if isinstance(one, LessThan):
        return FAR_PAST_MS, above - 1
    if isinstance(one, LessThanOrEqual):
        return FAR_PAST_MS, below
    return None
