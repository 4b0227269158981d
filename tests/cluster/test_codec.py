"""What may cross between processes, and what may not."""

from __future__ import annotations

import os
import pickle
from array import array
from typing import Any

import msgspec
import pytest

from laneway.broker.interface import Publish
from laneway.broker.topology import Owned
from laneway.cluster.codec import NoValue, decode, encode, encode_apart
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.core.message import Messages
from laneway.core.runs import Seqs
from laneway.errors import InvalidInput, QueueNotFound


@pytest.mark.parametrize(
    "value",
    [
        Publish([(1,), (2, 3)], Messages([b"a", b"b"], [b"", b""], [1, None], groups={1: "g"}), ("key", b"print")),
        Owned(5, 7),
        (1, [2, (3,)], {"x": {1}}, range(3), array("Q", [1, 2])),
        Seqs([1, 2, 5]),
    ],
)
def test_values_come_out_as_they_went_in(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize("bodies", [[b"a", memoryview(b"b")], []])
def test_columns_of_messages_may_go_apart(bodies: list[Any]) -> None:
    props, count = [b"p"] * len(bodies), len(bodies)
    deliveries = Deliveries(1, "q", 2, 3, range(count), range(count), [1] * count, [4] * count, props, bodies, b"5")
    value = [(1, Publish((4,), Messages(list(map(bytes, bodies)), props, [7] * count))), (2, [deliveries], NOTHING)]
    parcels, columns = encode_apart(value)
    assert decode(parcels, columns) == value
    assert bodies == [] or b"p" not in parcels
    assert encode_apart([1, "no messages"])[1] == b""


@pytest.mark.parametrize("columns", [b"", b"\x90", msgspec.msgpack.encode([[b"p"]]), msgspec.msgpack.encode([1])])
def test_columns_that_are_not_there_are_missed(columns: bytes) -> None:
    parcels, _ = encode_apart(Publish((4,), Messages([b"a"], [b"p"])))
    with pytest.raises((IndexError, TypeError, msgspec.DecodeError, pickle.UnpicklingError)):
        decode(parcels, columns)


def test_a_view_arrives_as_bytes_of_its_own() -> None:
    whole = memoryview(b"..first..second")
    assert decode(encode([whole[2:7], whole[9:]])) == [b"first", b"second"]


def test_an_error_comes_out_with_all_it_says() -> None:
    found = decode(encode(QueueNotFound("there is no queue 'q'", field="queue", queue="q")))
    assert type(found) is QueueNotFound and (found.field, found.details) == ("queue", {"queue": "q"})


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


class EvilInside:
    def __reduce__(self) -> tuple[Any, ...]:
        from laneway.core.message import encode_props

        return encode_props, ()


@pytest.mark.parametrize(
    "evil", [Evil(), EvilInside(), {"deep": [Evil()]}, InvalidInput("no", given=Evil()), len, os.system, Messages.at]
)
def test_nothing_but_values_is_built_from_bytes(evil: Any) -> None:
    with pytest.raises((NoValue, pickle.UnpicklingError)):
        decode(pickle.dumps(evil, 5))


@pytest.mark.parametrize("data", [b"", b"\x80\x05", b"not a pickle", pickle.dumps([1, 2, 3], 5)[:-3]])
def test_what_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError)):
        decode(data)
