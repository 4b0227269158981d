"""Lists: filtered by name, sorted, cut into pages and to the columns that are asked for, as RabbitMQ does it.

What is listed may be much, so it is looked at in slices, between which others have their turns. Things are described
only if their description is needed: those of a page, or all of them when they are sorted by what only it says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from laneway.errors import InvalidInput
from laneway.frontends.http.errors import HttpError
from laneway.frontends.management.asking import ManagementAsk, ManagementReply
from laneway.frontends.management.errors import bad_request
from laneway.regexes import compile_regex

T = TypeVar("T")

SLICE = 100
PAGE = 100
MAX_PAGE = 500
MAX_COLUMNS = 50
#: Of a list that is not cut into pages: 100,000 queues with their names and counts fit, with all columns they do not.
MAX_BYTES = 32 * 1024 * 1024

_encode = msgspec.json.encode


class Wish:
    """What a query says about a list."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.page, self.page_size = 0, PAGE
        if "page" in query or "page_size" in query:
            self.page, self.page_size = _whole(query.get("page", "1")), _whole(query.get("page_size", str(PAGE)))
            if self.page < 1 or not 1 <= self.page_size <= MAX_PAGE:
                raise HttpError(
                    400,
                    "invalid_pagination_parameters",
                    f"Invalid pagination parameters: page number {self.page}, page size {self.page_size}",
                )
        self.fits = _filter(query)
        self.sort = query.get("sort", "").split(".") if query.get("sort") else []
        self.is_reverse = query.get("sort_reverse") == "true"
        columns = query.get("columns", "")
        self.columns = [column.split(".") for column in columns.split(",")] if columns else []
        if len(self.columns) > MAX_COLUMNS:
            raise bad_request(f"at most {MAX_COLUMNS} columns can be asked for")
        self.has_stats = query.get("disable_stats") != "true" or query.get("enable_queue_totals") == "true"

    def needs(self, plain: frozenset[str]) -> bool:
        """Whether more is asked for than these columns."""
        if not self.has_stats:
            return False
        named = {column[0] for column in self.columns}
        return not named or not named <= plain

    def cut(self, row: dict[str, Any]) -> dict[str, Any]:
        return cut(row, self.columns) if self.columns else row


def _whole(text: str) -> int:
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise HttpError(400, "invalid_pagination_parameters", f"a page is a whole number, not {text[:80]!r}")
    return int(text)


def _filter(query: Mapping[str, str]) -> Callable[[str], bool] | None:
    name = query.get("name", "")
    if not name:
        return None
    if query.get("use_regex") == "true":
        try:
            wanted = compile_regex(name, field="name", ignores_case=True)
        except InvalidInput:
            raise bad_request("Pagination parameters are invalid") from None

        def fits(other: str) -> bool:
            if wanted.is_given_up:
                raise bad_request("name is a regular expression that takes too long to search for")
            return wanted.is_found_in(other)

        return fits
    lowered = name.lower()
    return lambda other: lowered in other.lower()


def cut(row: Mapping[str, Any], columns: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The columns of a row that are asked for; a.b is the b of what is under a."""
    kept: dict[str, Any] = {}
    for first, *rest in columns:
        if first not in row:
            continue
        value = row[first]
        if not rest:
            kept[first] = value
        elif isinstance(value, Mapping):
            inner = cut(value, [rest])
            if inner:
                kept[first] = {**kept.get(first, {}), **inner}
    return kept


def sort_key(row: Mapping[str, Any], path: Sequence[str]) -> tuple[int, Any]:
    """Numbers before text, and what is not there before both, as in Erlang."""
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return 2, str(value).lower()
    if isinstance(value, int | float):
        return 1, value
    return (0, 0) if value is None else (3, str(value))


async def answer(
    ask: ManagementAsk,
    things: Sequence[T],
    describe: Callable[[Sequence[T], Wish], Awaitable[list[dict[str, Any]]]],
    name_of: Callable[[T], str] | None = None,
) -> ManagementReply:
    """The list, or a page of it. `describe` makes rows of some things, in their order; `name_of` says what a filter
    looks at."""
    wish = Wish(ask.query)
    found = list(things)
    total = len(found)
    if wish.fits is not None and name_of is not None:
        fits, kept = wish.fits, list[T]()
        for start in range(0, total, SLICE):
            kept += [thing for thing in found[start : start + SLICE] if fits(name_of(thing))]
            await asyncio.sleep(0)
        found = kept
    if wish.sort:
        found = await _sorted(found, describe, wish)
    if not wish.page:
        return ManagementReply(200, await _whole_list(found, describe, wish))
    filtered = len(found)
    start = (wish.page - 1) * wish.page_size
    if start >= filtered and wish.page > 1:
        reason = f"Page out of range, page: {wish.page} page size: {wish.page_size}, len: {filtered}"
        raise HttpError(400, "page_out_of_range", reason)
    rows = await describe(found[start : start + wish.page_size], wish)
    page = {
        "filtered_count": filtered,
        "item_count": len(rows),
        "items": [wish.cut(row) for row in rows],
        "page": wish.page,
        "page_count": max(1, -(-filtered // wish.page_size)),
        "page_size": wish.page_size,
        "total_count": total,
    }
    return ManagementReply(200, _encode(page))


async def _sorted(
    things: list[T], describe: Callable[[Sequence[T], Wish], Awaitable[list[dict[str, Any]]]], wish: Wish
) -> list[T]:
    """Of what is described only the column that counts is kept."""
    looking = Wish({"columns": ".".join(wish.sort)})
    looking.has_stats = wish.has_stats
    keyed: list[tuple[tuple[int, Any], int]] = []
    for start in range(0, len(things), SLICE):
        rows = await describe(things[start : start + SLICE], looking)
        keyed += [(sort_key(row, wish.sort), start + i) for i, row in enumerate(rows)]
        await asyncio.sleep(0)
    order = await asyncio.to_thread(sorted, keyed, reverse=wish.is_reverse)
    return [things[i] for _, i in order]


async def _whole_list(
    things: Sequence[T], describe: Callable[[Sequence[T], Wish], Awaitable[list[dict[str, Any]]]], wish: Wish
) -> bytes:
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(things), SLICE):
        rows = await describe(things[start : start + SLICE], wish)
        if rows:
            parts.append(_encode([wish.cut(row) for row in rows])[1:-1])
            size += len(parts[-1])
        if size > MAX_BYTES:
            raise bad_request(
                f"this list is longer than {MAX_BYTES} bytes: ask for pages of it (page, page_size), or for fewer "
                "columns"
            )
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"
