"""Field tables and property lists, there and back, and everything that is not one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core import property_lists
from laneway.core.field_tables import MAX_DEPTH, Long, Malformed, Timestamp, decode_table, encode_table, split_table
from tests.amqp import wire

_names = st.text(max_size=20)
_scalars = (
    st.text(max_size=20)
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.none()
    | st.binary(max_size=20)
)
_values: st.SearchStrategy[Any] = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4), max_leaves=10
)
_tables = st.dictionaries(_names, _values, max_size=6)


@given(_tables)
def test_a_table_comes_back_as_it_was(table: dict[str, Any]) -> None:
    raw = encode_table(table)
    assert decode_table(raw, 0) == (table, len(raw))
    assert b"".join(entry for _, entry in split_table(raw, 0)) == raw[4:]


@given(_tables)
def test_another_codec_reads_the_same(table: dict[str, Any]) -> None:
    reader = wire.Reader(encode_table(table))
    reader.table()
    assert reader.at == len(reader.data)


@given(st.binary(max_size=200))
def test_noise_is_a_table_or_malformed_and_nothing_else(data: bytes) -> None:
    try:
        table, end = decode_table(data, 0)
    except Malformed:
        return
    assert 4 <= end <= len(data) and isinstance(table, dict)


@given(_tables, st.data())
def test_a_table_with_a_wrong_byte_is_a_table_or_malformed(table: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(encode_table(table))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_table(bytes(raw), 0)
    except Malformed:
        pass


def test_what_other_types_become() -> None:
    raw = wire.table(
        {"b": {"!b": -1}, "B": {"!B": 255}, "s": {"!s": -2}, "u": {"!u": 65535}, "i": {"!i": 1 << 31}, "l": {"!l": 5},
         "f": {"!f": 0.5}, "T": {"!T": 1700000000}}
    )  # fmt: skip
    assert decode_table(raw, 0)[0] == {
        "b": -1, "B": 255, "s": -2, "u": 65535, "i": 1 << 31, "l": 5, "f": 0.5, "T": 1700000000,
    }  # fmt: skip
    decimal = wire.long_text(wire.short_text("D") + b"D\x02\x00\x00\x00\x7b")
    assert decode_table(decimal, 0)[0] == {"D": 1.23}
    not_text = wire.long_text(wire.short_text("S") + b"S\x00\x00\x00\x01\xff")
    assert decode_table(not_text, 0)[0] == {"S": b"\xff"}


def test_special_numbers_are_written_as_what_they_are() -> None:
    reader = wire.Reader(encode_table({"count": Long(1), "time": Timestamp(5), "huge": 1 << 70}))
    assert reader.table() == {"count": {"!l": 1}, "time": {"!T": 5}, "huge": str(1 << 70)}


def test_nesting_has_an_end() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"t": nested(depth - 1)} if depth else {}

    assert decode_table(encode_table(nested(MAX_DEPTH)), 0)[0] == nested(MAX_DEPTH)
    with pytest.raises(Malformed, match="nested"):
        decode_table(encode_table(nested(MAX_DEPTH + 1)), 0)


_text = st.text(max_size=40)
_lists = st.fixed_dictionaries(
    {},
    optional={
        "content_type": _text,
        "content_encoding": _text,
        "headers": _tables,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": _text,
        "reply_to": _text,
        "expiration": _text,
        "message_id": _text,
        "timestamp": st.integers(0, (1 << 64) - 1),
        "type": _text,
        "user_id": _text,
        "app_id": _text,
        "cluster_id": _text,
    },
)


@given(_lists)
def test_a_property_list_comes_back_as_it_was(values: dict[str, Any]) -> None:
    raw = property_lists.encode(values)
    assert property_lists.decode(raw) == values
    assert property_lists.change(raw, {}) == raw
    assert property_lists.change_headers(raw, (), {}) == raw


@given(_lists, _lists)
def test_changing_some_properties_leaves_the_others(values: dict[str, Any], changes: dict[str, Any]) -> None:
    changes = {name: value for name, value in changes.items() if name != "headers"}
    assert property_lists.decode(property_lists.change(property_lists.encode(values), changes)) == {**values, **changes}
    without = dict.fromkeys(changes)
    left = {name: value for name, value in values.items() if name not in changes}
    assert property_lists.decode(property_lists.change(property_lists.encode(values), without)) == left


@given(_lists, _tables)
def test_adding_headers_leaves_the_others_byte_for_byte(values: dict[str, Any], added: dict[str, Any]) -> None:
    raw = property_lists.change_headers(property_lists.encode(values), ("gone",), added)
    expected = {name: value for name, value in values.get("headers", {}).items() if name != "gone"} | added
    assert property_lists.decode(raw).get("headers", {}) == expected


@given(st.binary(max_size=100))
def test_noise_is_a_property_list_or_malformed(raw: bytes) -> None:
    try:
        property_lists.decode(raw)
    except Malformed:
        pass
