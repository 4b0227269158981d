"""Regular expressions from outside: PCRE's syntax, and no pattern costs more than a bounded time and memory."""

from __future__ import annotations

import time

import pytest

from laneway.errors import InvalidInput
from laneway.regexes import MAX_CHARS, compile_regex


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        (".*", ["", "a", "ü"], []),
        ("^$", [""], ["a"]),
        ("b", ["abc"], ["ac"]),
        (r"^(?!amq\.).*", ["orders"], ["amq.topic"]),
        ("^[[:alpha:]]+$", ["abc"], ["a1"]),
        (r"(?i)^ORDERS\.\d{1,3}$", ["orders.1", "Orders.999"], ["orders.1000"]),
        (r"^(?>a+)b", ["aab"], ["aac"]),
        ("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", ["01234567-0123-0123-0123-0123456789ab"], ["01234567"]),
    ],
)
def test_pcre_is_understood(pattern: str, found: list[str], missed: list[str]) -> None:
    regex = compile_regex(pattern, field="pattern")
    assert [name for name in found + missed if regex.is_found_in(name)] == found


def test_case_counts_unless_it_is_said_not_to() -> None:
    assert not compile_regex("ORDERS", field="name").is_found_in("orders")
    assert compile_regex("ORDERS", field="name", ignores_case=True).is_found_in("orders")


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", "*", "(?P<x", "x" * (MAX_CHARS + 1)])
def test_what_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        compile_regex(pattern, field="pattern")
    assert refused.value.field == "pattern"


@pytest.mark.parametrize(
    "pattern", ["a{1000000}", "((a{1000}){1000}){1000}", "(a{200}){,200}", "(?:x{ 300 , 400 }){99}"]
)
def test_what_would_be_written_out_at_length_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="repeats something more than"):
        compile_regex(pattern, field="pattern")


@pytest.mark.parametrize("pattern", [r"(.*)\1(.*)\2(.*)\3$", "(?:(?:a{1,20}){1,20}){1,20}b", "(?:x|(?R))*"])
def test_what_backtracks_for_ever_is_given_up_soon(pattern: str) -> None:
    regex = compile_regex(pattern, field="pattern")
    began_s = time.process_time()
    for _ in range(1_000):
        assert not regex.is_found_in("a" * 254 + "c")
    assert time.process_time() - began_s < 2
    assert regex.is_given_up
