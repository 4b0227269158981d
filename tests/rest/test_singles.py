"""Single publishes that come together: each is what it would have been alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from laneway.core.events import Published
from tests.rest.serving import Serving, request, staged, take_responses
from tests.wire_broker import queues_of


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


def test_trouble_with_them_is_told_to_them_alone(
    own_serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = own_serving()
    with serving.client() as http:
        assert http.put("/queues/q").status_code == 201
        with monkeypatch.context() as patch:
            patch.setattr(queues_of(serving.partition), "publish", lambda *_: 1 / 0)
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
