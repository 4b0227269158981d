"""Records, properties and ids: what is stored comes back, and damage is noticed."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.message import (
    MAX_ATTRIBUTE_BYTES,
    MAX_ATTRIBUTES,
    MAX_TEXT_BYTES,
    PLAIN,
    RECORD_PREFIX_BYTES,
    Properties,
    decode_props,
    decode_record,
    encode_props,
    encode_record,
    message_id,
    message_id_prefix,
    message_ids,
    open_records,
    parse_message_id,
    record_is_intact,
    split_record,
)
from laneway.errors import InvalidInput

texts = st.text(st.characters(codec="utf-8"), max_size=60)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans()
values = texts | numbers | st.binary(max_size=40)
nested = st.recursive(
    values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=5
)
properties = st.builds(
    Properties,
    content_type=texts,
    group=texts,
    key=texts,
    tenant=texts,
    dedup_id=texts,
    correlation_id=texts,
    exchange=texts,
    routing_key=texts,
    attributes=st.dictionaries(texts, values, max_size=5),
    extra=st.dictionaries(texts, nested, max_size=3),
)


@given(properties)
def test_properties_come_back_as_they_were(p: Properties) -> None:
    assert decode_props(encode_props(p)) == p


@given(properties, st.binary(max_size=200), st.integers(1, 2**48), st.integers(0, 2**48 - 1))
def test_a_record_comes_back_as_it_was(p: Properties, body: bytes, seq: int, at_ms: int) -> None:
    record = encode_record(seq, at_ms, encode_props(p), body)
    assert record_is_intact(record)
    assert decode_record(record) == (seq, at_ms, p, body)


def test_plain_properties_take_no_space() -> None:
    record = encode_record(1, 2, encode_props(PLAIN), b"{}")
    assert len(record) == RECORD_PREFIX_BYTES + 2
    assert decode_record(record)[2] is PLAIN


def test_each_flipped_bit_of_a_record_is_noticed() -> None:
    record = encode_record(77, 1_800_000_000_000, encode_props(Properties(group="g", attributes={"a": 1})), b"the body")
    for at in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[at] ^= 1 << bit
            assert not record_is_intact(bytes(damaged)), f"bit {bit} of byte {at}"


@given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3), st.integers(0, 2**48)), min_size=1))
def test_records_taken_apart_together_are_those_taken_apart_one_by_one(made: list[tuple[bytes, bytes, int]]) -> None:
    records = [encode_record(seq, at_ms, props, body) for seq, (props, body, at_ms) in enumerate(made)]
    sizes = list(map(len, records))
    offsets = [7 + sum(sizes[:at]) for at in range(len(sizes))]
    data = memoryview(b"before " + b"".join(records) + b"behind")
    opened = open_records(data, offsets, sizes)
    assert opened is not None
    assert list(zip(*opened, strict=True)) == [split_record(record) for record in records]
    assert all(type(block) is bytes for block in opened[1])  # what is kept of it is no view
    assert all(one is two for one in opened[1] for two in opened[1] if one == two)
    for at in range(len(records)):
        spoilt = bytearray(data)
        spoilt[offsets[at] + sizes[at] - 1] ^= 1
        assert open_records(memoryview(spoilt), offsets, sizes) is None
    assert open_records(data[: offsets[-1] + sizes[-1] - 1], offsets, sizes) is None  # the file ends too soon
    assert open_records(data, offsets, [*sizes[:-1], RECORD_PREFIX_BYTES - 1]) is None


def test_a_record_that_is_cut_or_longer_is_noticed() -> None:
    record = encode_record(77, 5, b"", b"the body")
    for size in range(len(record)):
        assert not record_is_intact(record[:size])
    assert not record_is_intact(record + b"\0")


# Limits


@pytest.mark.parametrize("field", Properties.__struct_fields__[:8])
def test_each_text_has_a_limit_in_bytes(field: str) -> None:
    fits = Properties(**{field: "é" * (MAX_TEXT_BYTES // 2)})
    assert decode_props(encode_props(fits)) == fits
    with pytest.raises(InvalidInput, match=f"{field} has {MAX_TEXT_BYTES + 1} bytes") as wrong:
        encode_props(Properties(**{field: "é" * (MAX_TEXT_BYTES // 2) + "x"}))
    assert wrong.value.field == field


@pytest.mark.parametrize("field", Properties.__struct_fields__[:8])
def test_text_that_is_no_unicode_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput, match="not valid Unicode") as wrong:
        encode_props(Properties(**{field: "half \ud800"}))
    assert wrong.value.field == field


def test_attributes_are_limited_in_number_and_bytes() -> None:
    encode_props(Properties(attributes={str(i): i for i in range(MAX_ATTRIBUTES)}))
    with pytest.raises(InvalidInput, match=f"{MAX_ATTRIBUTES + 1} attributes"):
        encode_props(Properties(attributes={str(i): i for i in range(MAX_ATTRIBUTES + 1)}))
    encode_props(Properties(attributes={"a": b"x" * (MAX_ATTRIBUTE_BYTES - 20)}))
    with pytest.raises(InvalidInput, match="the attributes take"):
        encode_props(Properties(attributes={"a": b"x" * MAX_ATTRIBUTE_BYTES}))
    with pytest.raises(InvalidInput, match="the attributes take"):
        encode_props(Properties(extra={"a": b"x" * MAX_ATTRIBUTE_BYTES}))


def deep(levels: int) -> dict[str, object]:
    return {} if not levels else {"a": deep(levels - 1)}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), "\ud800", deep(500)])
def test_attributes_that_cannot_be_stored_are_refused(value: object) -> None:
    if isinstance(value, dict):
        for _ in range(600):
            value = {"a": value}
    with pytest.raises(InvalidInput, match="cannot be stored") as wrong:
        encode_props(Properties(attributes={"a": value}))
    assert wrong.value.field == "attributes"


# Ids


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**26 - 1), st.integers(1, 2**48 - 1))
def test_ids_are_uuids_of_version_7_and_name_their_message(at_ms: int, tag: int, seq: int) -> None:
    made = message_id(at_ms, tag, seq)
    parsed = uuid.UUID(made)
    assert str(parsed) == made
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == at_ms
    assert parse_message_id(made) == (at_ms, tag, seq)
    assert parse_message_id(made.upper()) == (at_ms, tag, seq)
    assert made == f"{message_id_prefix(at_ms, tag)}{seq:012x}"


@given(st.integers(0, 2**48 - 1), st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=20))
def test_ids_made_together_are_those_made_one_by_one(at_ms: int, seqs: list[int]) -> None:
    assert message_ids(at_ms, 777, seqs) == [message_id(at_ms, 777, seq) for seq in seqs]


@given(st.lists(st.tuples(st.integers(0, 2**48 - 1), st.integers(1, 2**48 - 1)), min_size=2, max_size=20))
def test_ids_sort_by_time_and_then_by_number(made: list[tuple[int, int]]) -> None:
    tag = 12345
    assert sorted(made) == sorted(made, key=lambda m: message_id(m[0], tag, m[1]))


@pytest.mark.parametrize("wrong", ["", "1", "not-an-id", "0" * 31, "g" * 32, "x" * 10_000])
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="not a message id") as refused:
        parse_message_id(wrong)
    assert refused.value.field == "message_id"
    assert len(refused.value.message) < 200
