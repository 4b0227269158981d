"""Damage is noticed: history is never silently shortened, and a wrong body is never handed out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import xxhash

from laneway.broker import engine
from laneway.core.message import open_records
from laneway.journal.history import reading, scan
from laneway.journal.history.scan import SegmentScan, Tail

from .damage import run_damage_seed
from .simulator import Failure
from .small import small_parts

PART = 100


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_parts():
        yield


def run(seeds: range, *kinds: str) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        outcomes.update(run_damage_seed(seed, kinds).outcomes)
    return outcomes


@pytest.mark.parametrize("first", range(0, 10 * PART, PART))
def test_a_flipped_bit_is_refused_or_noticed_or_was_not_needed(first: int) -> None:
    outcomes = run(range(first, first + PART), "flip")
    assert outcomes["refused"] > 10 and outcomes["record noticed"] > 0 and outcomes["started"] > 10


def test_a_missing_segment_is_refused() -> None:
    outcomes = run(range(200), "segment")
    assert outcomes["refused"] > 150


def test_a_missing_snapshot_is_refused_unless_all_history_is_there() -> None:
    outcomes = run(range(200), "snapshot")
    assert outcomes["refused"] > 50 and outcomes["started"] > 10


def test_a_last_segment_that_lost_its_end_is_refused() -> None:
    outcomes = run(range(200), "end")
    assert outcomes["refused"] > 150 and not outcomes["started"]


# The simulator can fail: mistakes planted in the code under test are found.


def found(*kinds: str) -> str:
    for seed in range(200):
        try:
            run_damage_seed(seed, kinds)
        except Failure as failure:
            return str(failure)
    pytest.fail("nothing was noticed")


def test_damage_taken_for_a_torn_tail_is_found() -> None:
    original = SegmentScan.tail

    def tail(self: Any, offset: int, position: int) -> Tail:
        return original(self, offset, position)._replace(proof_at=None)

    with mock.patch.object(SegmentScan, "tail", tail):
        assert "was durable" in found("flip")


def test_records_that_are_not_checked_are_found() -> None:
    def unchecked(data: memoryview, offsets: list[int], sizes: list[int]) -> Any:
        """As if each record had the right checksum."""
        right = bytearray(data)
        for at, size in zip(offsets, sizes, strict=True):
            right[at : at + 4] = (xxhash.xxh3_64_intdigest(right[at + 4 : at + size]) & 0xFFFFFFFF).to_bytes(
                4, "little"
            )
        return open_records(memoryview(right), offsets, sizes)

    with (
        mock.patch.object(reading, "record_is_intact", lambda record: True),
        mock.patch.object(reading, "open_records", unchecked),
        mock.patch.object(engine, "record_is_intact", lambda record: True),
    ):
        assert re.search("that nobody sent|unpack|UnicodeDecodeError|Properties.*, not Properties", found("flip"))


def test_commits_that_are_not_checked_are_found() -> None:
    class Equal:
        def __ne__(self, other: object) -> bool:
            return False

    with mock.patch.object(scan, "checksum", lambda data: Equal()):
        found("flip")
