"""Single publishes that come together: each is what it would have been alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core.events import Published
from laneway.core.message import Draft
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
    elif cuts is None:  # good messages with nothing that needs a closer look are not left to the slower way
        assert any(_is_refused(body) or json.loads(body).get("priority", 1) is None for body in bodies)


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


def test_as_python_writes_them_they_are_taken_together_too() -> None:
    plain = [{"payload": {"a": [1, 2]}}, {"priority": 3, "payload": "x, y: z"}, {"payload": 1, "priority": 10}]
    bodies = [json.dumps(one).encode() for one in plain] + [json.dumps(plain[1], separators=(",", ":")).encode()]
    together = decode_singles(bodies)
    assert together is not None
    assert together.drafts() == [decode_publish(body) for body in bodies]


def test_singles_of_one_connection_keep_their_order(serving: Serving, http: httpx.Client, queue: str) -> None:
    text = request("POST", f"{queue}/messages", b"text", "Content-Type: text/plain\r\n")
    serving.transcript([ask(queue, payload=0), ask(queue, payload=1), text, ask(queue, payload=2)], 4)
    assert [one["payload"] for one in dequeued(http, queue)] == [0, 1, "text", 2]


def test_one_who_is_asked_for_a_password_first_comes_first(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.client() as http:
        assert http.put("/queues/q").status_code == 201
        account = {"password": "secret", "roles": ["admin"], "permissions": [{"read": True, "write": True}]}
        assert http.put("/accounts/root", json=account).status_code == 201
    who = f"Authorization: Basic {base64.b64encode(b'root:secret').decode()}\r\n"
    publishes = [request("POST", "/queues/q/messages", b'{"payload":%d}' % n, who) for n in range(2)]
    written, _ = serving.transcript(publishes, 2)
    assert [one.status for one in take_responses(written)] == [201, 201]
    # Forgotten with the first change of accounts, so that it is checked again.
    serving.run(serving.access.put_account("other", password="another secret"))
    written, _ = serving.transcript([request("POST", "/queues/q/dequeue", b"{}", who)] * 2, 2)
    assert [one.json()["messages"][0]["payload"] for one in take_responses(written)] == [0, 1]


def test_large_ones_are_not_gathered_without_limit(
    serving: Serving, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    publish_one = serving.broker.publish_one

    def noted(vhost: str, name: str, draft: Draft, *rest: Any) -> None:
        seen.append(len(draft.body))
        publish_one(vhost, name, draft, *rest)

    monkeypatch.setattr(serving.broker, "publish_one", noted)
    answers = serving.at_once([ask(queue, payload="x" * size) for size in (10, 10, 9000, 9000)])
    assert [one.status for one in answers] == [201] * 4
    assert seen == [9002, 9002]


def test_trouble_with_them_is_told_to_them_alone(
    own_serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = own_serving()
    with serving.client() as http:
        assert http.put("/queues/q").status_code == 201
        with monkeypatch.context() as patch:
            patch.setattr(serving.broker, "publish_bodies", lambda *_: 1 / 0)
            answers = serving.at_once([ask("/queues/q", payload=n) for n in range(2)])
        assert [one.status for one in answers] == [500, 500]
        assert http.post("/queues/q/messages", json={"payload": 1}).status_code == 201


def test_those_of_one_connection_keep_their_order(serving: Serving, http: httpx.Client, queue: str) -> None:
    list_of_two = request("POST", f"{queue}/messages", b'[{"payload":1},{"payload":2}]')
    written, _ = serving.transcript([ask(queue, payload=0), list_of_two, ask(queue, payload=3), list_of_two], 4)
    assert [one.status for one in take_responses(written)] == [201] * 4
    assert [one["payload"] for one in dequeued(http, queue)] == [0, 1, 2, 3, 1, 2]


def test_a_publisher_who_hung_up_has_published(serving: Serving, http: httpx.Client, queue: str) -> None:
    """It may have heard of it or not; the others have, and in the same order as ever."""
    serving.at_once([ask(queue, payload=n) for n in range(3)], hang_up={1})
    assert [one["payload"] for one in dequeued(http, queue)] == [0, 1, 2]
