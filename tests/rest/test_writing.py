"""Answers laid out in columns say what they would say one by one."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.deliveries import Deliveries, Delivery
from laneway.core.digits import BLOCK
from laneway.core.message import Death, Draft, Properties, Receipt, Receipts, encode_props, messages_of
from laneway.core.stories import Story
from laneway.errors import QueueFull
from laneway.frontends.rest.answers import DequeueAnswer, GetAnswer
from laneway.frontends.rest.publishing import decode_publish
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.writing import AnswerWriter

TAG = 7
firsts = st.sampled_from([1, BLOCK - 6, BLOCK, 16 * BLOCK - 6]) | st.integers(1, (1 << 48) - 4 * BLOCK)
leases = st.sampled_from([5, (1 << 40) + BLOCK - 3]) | st.integers(1, (1 << 64) - 8 * BLOCK)

json_bodies = st.sampled_from(["", "é", "\U0001f600", "x" * 300]).map(
    lambda text: json.dumps(text, ensure_ascii=False).encode()
)
texts = st.sampled_from(["", "a", 'q"\n\\', "é:", "x" * 300])
plain_values = st.text(max_size=5) | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.floats(-10, 10)
nested_values = st.recursive(
    plain_values | st.binary(max_size=4) | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def properties(values: st.SearchStrategy[Any], types: st.SearchStrategy[str]) -> st.SearchStrategy[Properties]:
    names = ("group", "key", "tenant", "dedup_id", "correlation_id", "exchange", "routing_key")
    return st.builds(
        Properties,
        content_type=types,
        **dict.fromkeys(names, texts),
        attributes=st.dictionaries(st.text(max_size=4), values, max_size=3),
        extra=st.sampled_from([{}, {"reply_to": "r", "amqp": b"\xff"}, {"priority": 9}, {"sqs": {"trace": "t"}}]),
    )


@st.composite
def seqs_of(draw: st.DrawFn) -> list[int] | range:
    runs = draw(st.lists(st.tuples(firsts, st.integers(1, 20)), min_size=1, max_size=4))
    if len(runs) == 1:
        return range(runs[0][0], runs[0][0] + draw(st.sampled_from([runs[0][1], BLOCK + 5])))
    return [seq for first, count in runs for seq in range(first, first + count)]


#: A body and what is said about it: as HTTP publishes them, and as other protocols may.
plain_contents = st.tuples(json_bodies, st.just(b""))
described_contents = st.tuples(json_bodies, properties(plain_values, st.just("application/json")).map(encode_props))
any_contents = st.tuples(
    json_bodies | st.binary(max_size=6),
    properties(nested_values, st.sampled_from(["", "application/json", "a/b+json", "text/csv", "image/x"])).map(
        encode_props
    ),
)


@st.composite
def deliveries_of(draw: st.DrawFn) -> Deliveries:
    seqs = draw(seqs_of())
    count = len(seqs)

    def column(values: list[int]) -> list[int]:
        few = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return (few * count)[:count]

    kind = draw(st.sampled_from([plain_contents, plain_contents | described_contents, plain_contents | any_contents]))
    contents = (draw(st.lists(kind, min_size=1, max_size=4)) * count)[:count]
    bodies: list[bytes | memoryview] = [body for body, _ in contents]
    if draw(st.booleans()):
        bodies = [memoryview(b"[%b]" % body)[1:-1] for body in bodies]
    first = draw(leases)
    died = Story(3, 0, (Death("q", "rejected", 1_794_920_177_000, 2, is_first=True),), exchange="dlx", routing_key="k")
    return Deliveries(
        1,
        "q",
        TAG,
        1_794_920_177_999,
        seqs,
        range(first, first + count) if draw(st.booleans()) else [first + 3 * (count - i) for i in range(count)],
        column([1, 9, 10, 1000]),
        column([0, 1_794_920_177_062, 1_794_920_177_063]),
        [props for _, props in contents],
        bodies,
        bytes(column([0, 9, 10, 255])),
        {seqs[-1]: died} if draw(st.booleans()) else {},
    )


def wire(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"binary": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: wire(held) for name, held in value.items()}
    return [wire(held) for held in value] if isinstance(value, list) else value


def shown(d: Delivery, *, with_handles: bool) -> dict[str, Any]:
    """A delivery in plain Python, without its history."""
    p, text = d.properties, Timestamps().text
    told: dict[str, Any] = {
        "message_id": d.message_id,
        "priority": d.priority,
        "attributes": wire(p.attributes),
        "enqueued_at": text(d.enqueued_at_ms),
        "receive_count": d.receives,
    }
    told |= {name: getattr(p, name) for name in Properties.__struct_fields__[1:8] if getattr(p, name)}
    if "reply_to" in p.extra:
        told["properties"] = {"reply_to": "r"}
    if with_handles:
        told |= {"receipt_handle": d.token, "visible_until": text(d.deadline_ms)}
    payload, is_json = None, False
    try:
        if p.content_type.endswith("json"):
            payload, is_json = json.loads(d.body.decode()), True
        elif p.content_type.startswith("text/"):
            payload = d.body.decode()
    except ValueError:
        pass
    if is_json or payload is not None:
        told["payload"] = payload
    else:
        told["payload_base64"] = base64.b64encode(d.body).decode()
    if not is_json or p.content_type != "application/json":
        told["content_type"] = p.content_type
    return told


@given(deliveries_of(), st.booleans(), st.data())
def test_deliveries_in_columns_are_those_one_by_one(d: Deliveries, with_handles: bool, data: st.DataObject) -> None:
    writer = AnswerWriter(Timestamps())
    at = data.draw(st.integers(0, len(d) - 1))
    for some in (d, d.part(at, at + data.draw(st.integers(0, 30)))):
        pieces, size = writer.deliveries(some, with_handles=with_handles)
        text = b"".join(pieces)
        assert size == len(text)
        msgspec.json.decode(text, type=DequeueAnswer if with_handles else GetAnswer)
        told = json.loads(text)["messages"]
        deaths = [one.pop("dead_letter", None) for one in told]
        assert told == [shown(one, with_handles=with_handles) for one in some]
        assert [story is not None for story in deaths] == [bool(one.deaths) for one in some]


@given(seqs_of(), st.data())
def test_receipts_in_columns_are_those_one_by_one(seqs: list[int] | range, data: st.DataObject) -> None:
    def column(values: st.SearchStrategy[int]) -> list[int]:
        return (data.draw(st.lists(values, min_size=1, max_size=3)) * len(seqs))[: len(seqs)]

    at_ms = 1_794_920_177_062
    others = data.draw(
        st.dictionaries(
            st.integers(0, len(seqs) - 1),
            st.sampled_from([QueueFull("full"), Receipt("an-id", 3, at_ms - 5, at_ms, duplicate=True)]),
            max_size=3,
        )
    )
    visible = column(st.sampled_from([0, at_ms + 10])) if data.draw(st.booleans()) else None
    receipts = Receipts(TAG, seqs, column(st.integers(0, 255)), at_ms, visible, others)
    text = Timestamps().text
    told = json.loads(AnswerWriter(Timestamps()).receipts(receipts, '"q"'))
    assert len(told) == len(seqs)
    for one, receipt in zip(told, receipts.each(), strict=True):
        if isinstance(receipt, Receipt):
            assert one == {
                "message_id": receipt.message_id,
                "queue_name": "q",
                "priority": receipt.priority,
                "enqueued_at": text(receipt.enqueued_at_ms),
                "visible_at": text(receipt.visible_at_ms),
                **({"duplicate": True} if receipt.duplicate else {}),
            }
        else:
            assert one["error"]["code"] == "queue_full"


requests = st.fixed_dictionaries(
    {"payload": st.sampled_from([None, 1, "é", {"a": ":"}])},
    optional={
        "priority": st.none() | st.integers(0, 255),
        "delay_seconds": st.none() | st.sampled_from([0, 1, 2.5, 900]),
        "ttl_seconds": st.none() | st.sampled_from([0.0001, 1, 60]),
        "attributes": st.none()
        | st.dictionaries(st.text(max_size=4), plain_values | st.binary(max_size=3).map(wire), max_size=3),
        **{name: st.none() | texts for name in ("correlation_id", "group", "key", "tenant", "dedup_id")},
    },
)


def draft_of(said: dict[str, Any]) -> Draft:
    def ms(name: str) -> int | None:
        return None if said.get(name) is None else round(said[name] * 1000) or (1 if name == "ttl_seconds" else 0)

    attributes = {
        name: base64.b64decode(value["binary"]) if isinstance(value, dict) else value
        for name, value in (said.get("attributes") or {}).items()
    }
    names = ("group", "key", "tenant", "dedup_id", "correlation_id")
    properties = Properties(**{name: said.get(name) or "" for name in names}, attributes=attributes)
    body = json.dumps(said["payload"], ensure_ascii=False, separators=(",", ":")).encode()
    draft = Draft(body, said.get("priority"), properties, ms("delay_seconds"), None, ms("ttl_seconds"))
    return (
        Draft(body, draft.priority, delay_ms=draft.delay_ms, ttl_ms=draft.ttl_ms)
        if properties == Properties()
        else draft
    )


@given(st.lists(requests, min_size=1, max_size=5), st.booleans())
def test_messages_decoded_into_columns_are_those_one_by_one(said: list[dict[str, Any]], is_compact: bool) -> None:
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":") if is_compact else (", ", ": ")).encode()
    expected = messages_of([draft_of(one) for one in said])
    decoded = decode_publish(body, 1000)
    if not is_compact:
        expected.bodies = [json.dumps(one["payload"], ensure_ascii=False).encode() for one in said]
    assert decoded == expected
