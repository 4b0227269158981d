"""Answers laid out in columns say what they would say one by one."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from laneway.core.digits import BLOCK
from laneway.core.message import Deliveries, Receipts, part_of
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.writing import Writer

TAG = 7
firsts = st.sampled_from([1, BLOCK - 6, BLOCK, 16 * BLOCK - 6]) | st.integers(1, (1 << 48) - 4 * BLOCK)
leases = st.sampled_from([5, (1 << 40) + BLOCK - 3]) | st.integers(1, (1 << 64) - 8 * BLOCK)
texts = st.sampled_from(["", "é", "\U0001f600", "x" * 300]).map(lambda text: json.dumps(text, ensure_ascii=False))


@st.composite
def seqs_of(draw: st.DrawFn) -> list[int] | range:
    runs = draw(st.lists(st.tuples(firsts, st.integers(1, 20)), min_size=1, max_size=4))
    if len(runs) == 1:
        return range(runs[0][0], runs[0][0] + draw(st.sampled_from([runs[0][1], BLOCK + 5])))
    return [seq for first, count in runs for seq in range(first, first + count)]


@st.composite
def deliveries_of(draw: st.DrawFn) -> Deliveries:
    seqs = draw(seqs_of())
    count = len(seqs)

    def column(values: list[int]) -> list[int]:
        few = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return (few * count)[:count]

    bodies = [text.encode() for text in draw(st.lists(texts, min_size=1, max_size=4))]
    views: list[bytes | memoryview] = [memoryview(b"[%b]" % body)[1:-1] for body in bodies]
    return Deliveries(
        TAG,
        seqs,
        draw(leases),
        1_794_920_177_999,
        column([1, 9, 10, 1000]),
        column([0, 1_794_920_177_062, 1_794_920_177_063]),
        [b""] * count,
        ((views if draw(st.booleans()) else bodies) * count)[:count],  # type: ignore[operator]
        bytes(column([0, 9, 10, 255])),
    )


@given(deliveries_of(), st.data())
def test_deliveries_in_columns_are_those_one_by_one(deliveries: Deliveries, data: st.DataObject) -> None:
    writer = Writer(Timestamps())
    at = data.draw(st.integers(0, len(deliveries) - 1))
    for some in (deliveries, part_of(deliveries, at, at + data.draw(st.integers(1, 30)))):
        pieces, size = writer.delivery_pieces(some)
        text = b"".join(pieces)
        assert text == writer.deliveries(list(some))
        assert size == len(text)


@given(seqs_of(), st.data())
def test_receipts_in_columns_tell_their_numbers(seqs: list[int] | range, data: st.DataObject) -> None:
    few = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=3))
    priorities = (few * len(seqs))[: len(seqs)]
    told = json.loads(Writer(Timestamps()).plain_receipts(Receipts(TAG, seqs, priorities, 1_794_920_177_062), '"q"'))
    assert [one["message_id"][-12:] for one in told] == [f"{seq:012x}" for seq in seqs]
    assert [one["priority"] for one in told] == priorities
