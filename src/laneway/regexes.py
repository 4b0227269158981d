"""Regular expressions that come from outside, as RabbitMQ's tools write them (PCRE). Looking for one takes a bounded
time, whatever it says: a pattern that backtracks for ever would hold up everybody else."""

from __future__ import annotations

import regex

from laneway.errors import InvalidInput

MAX_CHARS = 1024
_LONGEST_S = 0.1  # of one look; a usual one takes microseconds


class Regex:
    """A compiled pattern. One that takes too long counts as not found, and is told from one that is not there by
    nobody: it is never found in such a name."""

    __slots__ = ("_search", "pattern")

    def __init__(self, pattern: str, compiled: regex.Pattern[str]) -> None:
        self.pattern = pattern
        self._search = compiled.search

    def is_found_in(self, name: str) -> bool:
        try:
            return self._search(name, timeout=_LONGEST_S) is not None
        except TimeoutError:
            return False


def compile_regex(pattern: str, *, field: str, ignores_case: bool = False) -> Regex:
    if len(pattern) > MAX_CHARS:
        raise InvalidInput(f"{field} has {len(pattern)} characters, {MAX_CHARS} are allowed", field=field)
    try:
        return Regex(pattern, regex.compile(pattern, regex.IGNORECASE if ignores_case else 0))
    except (regex.error, OverflowError, RecursionError, ValueError) as wrong:
        raise InvalidInput(f"{field} is no regular expression: {wrong}", field=field) from None
