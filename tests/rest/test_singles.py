"""Single publishes that come together: each is what it would have been alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.events import Published
from laneway.errors import InvalidInput
from laneway.frontends.rest.publishing import decode_publish, decode_singles
from tests.rest.serving import Serving, request, staged, take_responses

values = st.recursive(
    st.none() | st.integers(-5, 300) | st.sampled_from(["", "é", "},{", '","', "[1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["payload", "a"]), inner, max_size=2),
    max_leaves=5,
)
messages = st.fixed_dictionaries({"payload": values}, optional={"priority": st.none() | st.integers(0, 300)})
texts = st.builds(
    lambda message, style, ascii_only: json.dumps(message, separators=style, ensure_ascii=ascii_only),
    messages,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)


@given(st.lists(texts, min_size=1, max_size=4), st.data())
def test_bodies_mean_together_what_each_means_alone(entries: list[str], data: st.DataObject) -> None:
    """However a text that is a good list is cut into bodies: what does not stand alone is not taken for a message."""
    whole = ",".join(entries)
    commas = [at for at, char in enumerate(whole) if char == ","]
    cuts = sorted(data.draw(st.sets(st.sampled_from(commas)))) if commas and data.draw(st.booleans()) else None
    if cuts is None:
        bodies = [entry.encode() for entry in entries]
    else:
        ends = zip([-1, *cuts], [*cuts, len(whole)], strict=True)
        bodies = [whole[start + 1 : end].encode() for start, end in ends]
    together = decode_singles(bodies)
    if together is not None:
        assert together.drafts() == [decode_publish(body) for body in bodies]
    elif cuts is None and all(entry == json.dumps(json.loads(entry), separators=(",", ":")) for entry in entries):
        # Short texts of good messages are not left to the slower way.
        assert any(_is_refused(body) or "null" in body.decode() for body in bodies)


def _is_refused(body: bytes) -> bool:
    try:
        decode_publish(body)
    except InvalidInput:
        return True
    return False


def test_bodies_that_only_together_are_messages_are_none() -> None:
    assert decode_singles([b'{"payload":[1', b"2]}"]) is None
    assert decode_singles([b'{"payload":1},{"payload":[1', b"2]}"]) is None
    assert decode_singles([b'{"payload":1},{"payload":2}']) is None
    assert decode_singles([b'{"payload":1}', b'{"payload":2,"payload":3}']) is None
    assert decode_singles([b'{"payload":"\xff"}']) is None
    assert decode_singles([b'{"payload":' + b"[" * 5000 + b"]" * 5000 + b"}"]) is None


def ask(queue: str, **message: Any) -> bytes:
    return request("POST", f"{queue}/messages", json.dumps(message, separators=(",", ":")).encode())


def dequeued(http: httpx.Client, queue: str) -> list[dict[str, Any]]:
    return list(http.post(f"{queue}/dequeue", json={"max_messages": 100}).json()["messages"])


def test_each_is_told_its_own(serving: Serving, http: httpx.Client, queue: str) -> None:
    priorities = [3, 9, None, 3, 9, 0, None]
    asked = [{"payload": n} | ({} if p is None else {"priority": p}) for n, p in enumerate(priorities)]
    with staged(serving, Published) as published:
        answers = serving.at_once([ask(queue, **one) for one in asked])
    assert [one.status for one in answers] == [201] * len(asked)
    assert [len(event.sizes) for event in published] == [len(asked)], "they were published together"
    told = {one.json()["message_id"]: (n, one.json()["priority"]) for n, one in enumerate(answers)}
    found = [(one["message_id"], one["payload"], one["priority"]) for one in dequeued(http, queue)]
    assert [payload for _, payload, _ in found] == [1, 4, 2, 6, 0, 3, 5]
    assert [told[message_id] for message_id, _, _ in found] == [(payload, p) for _, payload, p in found]
    assert {one.json()["queue_name"] for one in answers} == {queue.removeprefix("/queues/")}


def test_one_that_is_refused_keeps_nobody_from_theirs(serving: Serving, http: httpx.Client, queue: str) -> None:
    answers = serving.at_once(
        [
            ask(queue, payload="good"),
            ask(queue, payload="too urgent", priority=200),
            ask(queue),
            request("POST", f"{queue}/messages", b'{"payload":[1'),
            ask("/queues/nowhere", payload=1),
            ask("/queues/nowhere", payload=2),
            ask(queue, payload="described", attributes={"a": 1}),
            request("POST", f"{queue}/messages", b'[{"payload":"list"}]'),
            ask(queue, payload="x" * 300_000),
            ask(queue, payload="last"),
        ]
    )
    assert [one.status for one in answers] == [201, 400, 400, 400, 404, 404, 201, 201, 413, 201]
    assert answers[1].error["field"] == "priority"
    payloads = {one["payload"] for one in dequeued(http, queue)}
    assert payloads == {"good", "described", "list", "last"}


def test_a_full_queue_takes_as_many_as_there_is_room_for(serving: Serving, http: httpx.Client, queue: str) -> None:
    assert http.patch(queue, json={"max_messages": 2}).status_code == 200
    answers = serving.at_once([ask(queue, payload=n) for n in range(4)])
    assert [one.status for one in answers] == [201, 201, 429, 429]


def test_those_of_one_connection_keep_their_order(serving: Serving, http: httpx.Client, queue: str) -> None:
    list_of_two = request("POST", f"{queue}/messages", b'[{"payload":1},{"payload":2}]')
    written, _ = serving.transcript([ask(queue, payload=0), list_of_two, ask(queue, payload=3), list_of_two], 4)
    assert [one.status for one in take_responses(written)] == [201] * 4
    assert [one["payload"] for one in dequeued(http, queue)] == [0, 1, 2, 3, 1, 2]


def test_a_publisher_who_hung_up_has_published(serving: Serving, http: httpx.Client, queue: str) -> None:
    """It may have heard of it or not; the others have, and in the same order as ever."""
    serving.at_once([ask(queue, payload=n) for n in range(3)], hang_up={1})
    assert [one["payload"] for one in dequeued(http, queue)] == [0, 1, 2]
