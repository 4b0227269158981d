"""Tokens and ids as text: neighbours from a table, and back, are what each on its own would be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.digits import (
    BLOCK,
    SECRET_LEASE,
    SEQ_DIGITS,
    SESSION_LEASE,
    SHORT_RUN,
    Tokens,
    by_block,
    chances,
    hex_lines,
    high_digits,
    low_digits,
    mark_of,
    own_tokens,
    secret_lease,
    token,
    tokens_in,
    tokens_text,
)

BETWEEN = b'"},{"receipt_handle":"'
EDGE = st.integers(1, 4 * BLOCK)  # near the borders of blocks and slabs
SEQ = EDGE | st.integers(1, (1 << 48) - 4 * BLOCK)
LEASE = EDGE | st.integers(1, (1 << 64) - 16 * BLOCK)
RUN = st.builds(
    lambda seq, lease, count: (range(seq, seq + count), range(lease, lease + count)), SEQ, LEASE, st.integers(8, 60)
)


def plain(runs: list[tuple[range, range]]) -> list[str]:
    return [token(lease, seq) for seqs, leases in runs for seq, lease in zip(seqs, leases, strict=True)]


@given(RUN)
def test_tokens_of_neighbours_are_those_of_each(run: tuple[range, range]) -> None:
    assert tokens_text(*run, b", ").decode() == ", ".join(plain([run]))


@given(st.lists(RUN, min_size=1, max_size=4))
def test_tokens_are_found_in_their_text(runs: list[tuple[range, range]]) -> None:
    expected = plain(runs)
    found = tokens_in(BETWEEN.join(text.encode() for text in expected), BETWEEN)
    assert isinstance(found, Tokens)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert (found[0], found[-1], found[2:5]) == (expected[0], expected[-1], expected[2:5])


@given(st.lists(RUN, min_size=1, max_size=3), st.data())
def test_a_text_that_differs_anywhere_is_not_taken_for_others(
    runs: list[tuple[range, range]], data: st.DataObject
) -> None:
    text = bytearray(BETWEEN.join(token.encode() for token in plain(runs)))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[at]))
    found = tokens_in(bytes(text), BETWEEN)
    # Whatever is found says the text again: a changed digit may be another token, nothing else may be one.
    assert found is None or BETWEEN.join(token.encode() for token in found) == text


@pytest.mark.parametrize("text", [b"", b"0" * 27, b"0" * 28, b"z" * 28 * SHORT_RUN, (b"+" + b"0" * 27) * SHORT_RUN])
def test_what_is_no_run_is_left_to_others(text: bytes) -> None:
    assert tokens_in(text, b"") is None


def test_scattered_tokens_are_left_to_others() -> None:
    texts = [token(5, seq).encode() for seq in range(1, 400, 3)]
    assert tokens_in(b",".join(texts), b",") is None


def test_a_number_that_has_no_room_is_no_token() -> None:
    last = (1 << 64) - 3
    texts = [b"%016x%012x" % (lease % (1 << 64), 1) for lease in range(last, last + SHORT_RUN)]
    assert tokens_in(b",".join(texts), b",") is None


@given(st.lists(st.tuples(SEQ, st.integers(1, 3 * BLOCK)), min_size=1, max_size=4), st.just(0) | LEASE)
def test_numbers_in_parts_are_the_numbers(runs: list[tuple[int, int]], lease: int) -> None:
    seqs = [seq for first, count in runs for seq in range(first, first + count)]
    written: list[bytes] = []
    for at, count in by_block(seqs, lease):
        assert not lease or (lease + at) // BLOCK == (lease + at + count - 1) // BLOCK
        high = high_digits(seqs[at], SEQ_DIGITS)
        written += [high + low for low in low_digits(seqs[at], count)]
    assert [text.decode() for text in written] == [f"{seq:012x}" for seq in seqs]
    assert "".join(f"\n0000{text.decode()}" for text in written) == hex_lines(seqs)


ANN, BOB = (secret_lease(name, 0) for name in ("ann", "bob"))


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 4096), st.text(max_size=20))
def test_a_secret_lease_is_marked_and_never_taken_for_a_counted_one(chance: int, count: int, account: str) -> None:
    first = secret_lease(account, chance)
    for lease in (first, first + count):
        assert lease & SECRET_LEASE and not lease & SESSION_LEASE and lease < 1 << 63
        assert lease >> 48 == mark_of(account)


def test_tokens_of_another_account_become_one_that_was_never_given() -> None:
    mine, hers = token(BOB + 5, 7), token(ANN + 5, 8)
    assert own_tokens([mine, hers], "bob") == [mine, "0" * 28]
    assert own_tokens([mine], "bob") == [mine]
    assert own_tokens(["x", "g" * 28, "\ud800" * 28], "bob") == ["x", "g" * 28, "\ud800" * 28]
    assert own_tokens([token(1 << 40 | 1, 7)], "bob") == ["0" * 28]  # a counted one


def test_runs_of_tokens_are_kept_as_runs_if_they_are_all_of_one_account() -> None:
    mine = Tokens([(range(5, 9), range(BOB, BOB + 4)), (range(20, 22), range(BOB + 9, BOB + 11))])
    assert own_tokens(mine, "bob") is mine
    assert list(own_tokens(mine, "ann")) == ["0" * 28] * 6
    mixed = Tokens([*mine.runs, (range(30, 32), range(ANN, ANN + 2))])
    assert list(own_tokens(mixed, "bob")) == [*mine, *["0" * 28] * 2]


def test_chances_are_drawn_many_at_once() -> None:
    asked: list[int] = []

    def random_bytes(size: int) -> bytes:
        asked.append(size)
        return bytes(range(256)) * (size // 256)

    drawn = chances(random_bytes)
    first = [next(drawn) for _ in range(512)]
    assert asked == [4096] and first[0] == int.from_bytes(range(8), "little")
    next(drawn)
    assert asked == [4096] * 2
