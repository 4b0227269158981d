"""Glob patterns over names: `*` is any run of characters, `?` exactly one, everything else is itself, case included.

A pattern is compiled once, to a predicate whose cost is bounded: matching never backtracks over an earlier `*`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Matcher = Callable[[str], bool]


def compile_pattern(pattern: str) -> Matcher:
    """A predicate telling whether a name matches the pattern as a whole."""
    if not pattern.strip("*") and pattern:
        return _anything
    if "*" not in pattern and "?" not in pattern:
        return pattern.__eq__
    matches = re.compile(_to_regex(pattern), re.DOTALL).fullmatch
    return lambda name: matches(name) is not None


def regex_of(pattern: str) -> str:
    """The regular expression, in PCRE too, that is found in just the names that match."""
    return f"^{_to_regex(pattern)}$"


def _anything(name: str) -> bool:
    return True


def _to_regex(pattern: str) -> str:
    head, *rest = [_piece_to_regex(piece) for piece in re.split(r"\*+", pattern)]
    if not rest:
        return head
    *middle, tail = rest
    # The first place where a piece fits leaves the most room for the pieces after it, so it never has to be tried
    # again: an atomic group says just that. Without it, a*a*a*a*b costs a power of the name's length.
    return head + "".join(f"(?>.*?{piece})" for piece in middle) + ".*" + tail


def _piece_to_regex(piece: str) -> str:
    return "".join("." if c == "?" else re.escape(c) for c in piece)
