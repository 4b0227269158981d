"""Regular expressions that come from outside, as RabbitMQ's tools write them (PCRE). Looking for one takes a bounded
time, whatever it says: a pattern that backtracks for ever would hold up everybody else."""

from __future__ import annotations

import logging
import math
import re

import regex

from laneway.errors import InvalidInput

log = logging.getLogger("laneway.regexes")

MAX_CHARS = 1024
#: What {n} repeats may be written out when a pattern is compiled, within one another n times m times. All such numbers
#: of a pattern are multiplied, which is at least as much.
MAX_REPEATS = 20_000
_REPEATED = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_LONGEST_S = 0.02  # of one search; a usual one takes microseconds
_PATIENCE = 3  # searches that took too long, before no more are begun


class Regex:
    """A compiled pattern. A search that takes too long has not found it, and after some of these none is begun."""

    __slots__ = ("_left", "_search", "pattern")

    def __init__(self, pattern: str, compiled: regex.Pattern[str]) -> None:
        self.pattern = pattern
        self._search = compiled.search
        self._left = _PATIENCE

    @property
    def is_given_up(self) -> bool:
        return not self._left

    def is_found_in(self, name: str) -> bool:
        if not self._left:
            return False
        try:
            return self._search(name, timeout=_LONGEST_S) is not None
        except TimeoutError:
            self._left -= 1
            if not self._left:
                log.warning(
                    "searches for the regular expression %r take too long: it is found in nothing", self.pattern
                )
            return False


def compile_regex(pattern: str, *, field: str, ignores_case: bool = False) -> Regex:
    if len(pattern) > MAX_CHARS:
        raise InvalidInput(f"{field} has {len(pattern)} characters, {MAX_CHARS} are allowed", field=field)
    times = math.prod(max(1, int(most or least or 1)) for least, most in _REPEATED.findall(pattern))
    if times > MAX_REPEATS:
        raise InvalidInput(f"{field} repeats something more than {MAX_REPEATS} times", field=field)
    try:
        return Regex(pattern, regex.compile(pattern, regex.IGNORECASE if ignores_case else 0))
    except (regex.error, OverflowError, RecursionError, ValueError) as wrong:
        raise InvalidInput(f"{field} is no regular expression: {wrong}", field=field) from None
