"""`get` with its ways to say what becomes of the messages, and the paths with a virtual host in them."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from laneway.broker.interface import DeclareQueue, EndSession, Publish
from laneway.core.message import Draft, Properties, messages_of
from laneway.core.settings import QueueSettings
from laneway.frontends.rest.answers import GetAnswer
from tests.in_thread import wait_for
from tests.rest.serving import Serving
from tests.rest.test_consume import dequeue, error, publish


@pytest.fixture
def short(http: httpx.Client, queue: str) -> str:
    """The path of the queue `queue`, with its virtual host in it."""
    return queue.replace("/queues/", "/queues/%2F/")


def get(http: httpx.Client, path: str, **options: Any) -> list[dict[str, Any]]:
    answer = http.get(f"{path}/get", params=options)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=GetAnswer)
    return list(answer.json()["messages"])


def test_get_takes_one_message_with_a_receipt_handle_unless_told_otherwise(
    http: httpx.Client, queue: str, short: str
) -> None:
    publish(http, queue, {"n": 1}, {"n": 2})
    (message,) = get(http, short)
    assert message["payload"] == {"n": 1} and message["receive_count"] == 1
    assert http.get(f"{queue}/stats").json()["in_flight_count"] == 1
    answer = http.post(f"{short}/ack", json=[{"receipt_handle": message["receipt_handle"]}])
    assert answer.json() == [{"status": "acked"}]
    assert [m["payload"] for m in get(http, short, count=5)] == [{"n": 2}]


def test_get_can_give_back_by_nack(http: httpx.Client, queue: str, short: str) -> None:
    publish(http, queue, 1)
    (message,) = get(http, short, ack_mode="manual")
    answer = http.post(f"{short}/nack", json=[{"receipt_handle": message["receipt_handle"]}])
    assert answer.json()[0]["status"] == "released"
    assert dequeue(http, queue)[0]["receive_count"] == 2


@pytest.mark.parametrize(
    ("ack_mode", "ready", "dead"),
    [
        ("ack_requeue_false", 0, 0),
        ("ack_requeue_true", 2, 0),
        ("reject_requeue_true", 2, 0),
        ("reject_requeue_false", 0, 2),
    ],
)
def test_what_becomes_of_the_messages(
    http: httpx.Client, queue: str, short: str, ack_mode: str, ready: int, dead: int
) -> None:
    publish(http, queue, "a", "b", attributes={"x": 1})
    messages = get(http, short, count=10, ack_mode=ack_mode)
    assert [m["payload"] for m in messages] == ["a", "b"]
    assert all("receipt_handle" not in m and m["attributes"] == {"x": 1} for m in messages)
    stats = http.get(f"{queue}/stats").json()
    assert (stats["approximate_message_count"], stats["in_flight_count"], stats["dlq_count"]) == (ready, 0, dead)


def test_an_empty_queue_gives_nothing(http: httpx.Client, short: str) -> None:
    for mode in ("manual", "ack_requeue_false"):
        assert get(http, short, ack_mode=mode) == []


@pytest.mark.parametrize(
    ("query", "field"), [("count=0", "count"), ("count=1001", "count"), ("ack_mode=auto", "ack_mode"), ("x=1", "x")]
)
def test_a_wrong_question_is_refused(http: httpx.Client, short: str, query: str, field: str) -> None:
    assert error(http.get(f"{short}/get?{query}")) == (400, "invalid_input", field)


def test_a_head_request_takes_nothing(http: httpx.Client, queue: str, short: str) -> None:
    publish(http, queue, 1)
    answer = http.head(f"{short}/get?ack_mode=ack_requeue_false")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
    assert http.get(f"{queue}/stats").json()["approximate_message_count"] == 1


def test_a_page_of_another_site_takes_nothing(serving: Serving, http: httpx.Client, queue: str) -> None:
    """An image's request has no Origin, but browsers say where it comes from."""
    publish(http, queue, 1)
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        answer = http.get(f"{queue}/get?ack_mode=ack_requeue_true", headers={"Sec-Fetch-Site": site})
        assert answer.status_code == status
    assert error(http.get(f"{queue}/get", headers={"Sec-Fetch-Site": "cross-site"})) == (
        403,
        "forbidden",
        "Sec-Fetch-Site",
    )


def test_every_form_of_a_path_leads_to_the_same_queue(http: httpx.Client) -> None:
    http.put("/vhosts/forms")
    made = http.put("/queues/forms/q", json={"max_priority": 3})
    assert made.status_code == 201
    assert (made.json()["vhost"], made.json()["queue_name"], made.json()["max_priority"]) == ("forms", "q", 3)
    assert http.get("/vhosts/forms/queues/q").json() == http.get("/queues/forms/q").json() == made.json()
    http.post("/vhosts/forms/queues/q/messages", json={"payload": 1})
    assert [m["payload"] for m in get(http, "/vhosts/forms/queues/q")] == [1]
    assert http.delete("/queues/forms/q").status_code == 204
    assert error(http.get("/queues/forms/q"))[1] == "queue_not_found"


def test_where_a_path_could_mean_two_things_the_plain_one_wins(http: httpx.Client) -> None:
    http.put("/vhosts/both")
    http.put("/queues/both")
    assert http.put("/vhosts/both/queues/stats").status_code == 201
    assert "approximate_message_count" in http.get("/queues/both/stats").json()  # of the queue both
    assert http.get("/vhosts/both/queues/stats").json()["queue_name"] == "stats"
    # Not even a method that the plain path does not have makes it the other: a typo must not delete a queue.
    answer = http.delete("/queues/both/stats")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert http.delete("/vhosts/both/queues/stats").status_code == 204


def test_reprocessing_brings_dead_letters_back(http: httpx.Client, queue: str, short: str) -> None:
    publish(http, queue, "again")
    get(http, short, ack_mode="reject_requeue_false")
    answer = http.post(f"{short}/reprocess")
    assert answer.status_code == 202 and answer.headers["Location"] == f"/tasks/{answer.json()['task_id']}"
    wait_for(lambda: http.get(answer.headers["Location"]).json()["state"] == "completed", "the task ends")
    assert [m["payload"] for m in dequeue(http, queue)] == ["again"]


# --- declared with arguments


def test_a_queue_is_declared_with_amqps_arguments(http: httpx.Client) -> None:
    arguments = {"x-message-ttl": 60000, "x-max-priority": 9, "x-dead-letter-exchange": "", "x-queue-type": "classic"}
    made = http.put("/queues/%2F/declared", json={"auto_delete": True, "arguments": arguments})
    assert made.status_code == 201, made.text
    told = made.json()
    assert (told["message_ttl_seconds"], told["max_priority"], told["auto_delete"]) == (60, 9, True)
    assert (told["dead_letter_exchange"], told["max_receive_count"], told["keep_dead"]) == ("", None, False)
    assert told["arguments"] == arguments
    again = http.put("/queues/%2F/declared", json={"auto_delete": True, "arguments": arguments})
    assert again.status_code == 200 and again.json() == told


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"arguments": {"x-message-ttl": 2}}, "arguments.x-message-ttl"),
        ({"arguments": {}}, "arguments.x-message-ttl"),
        ({"arguments": {"x-message-ttl": 1, "x-expires": 5}}, "arguments.x-expires"),
        ({"arguments": {"x-message-ttl": 1}, "durable": False}, "durable"),
    ],
)
def test_a_queue_declared_in_another_way_stays_as_it_is(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    http.put("/queues/fixed", json={"arguments": {"x-message-ttl": 1}})
    assert error(http.put("/queues/fixed", json=body)) == (409, "queue_exists", field)
    assert http.get("/queues/fixed").json()["arguments"] == {"x-message-ttl": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"arguments": {"x-message-ttl": "soon"}}, "arguments.x-message-ttl"),
        ({"arguments": {"x-max-priority": 256}}, "arguments.x-max-priority"),
        ({"arguments": {"x-dead-letter-routing-key": "k"}}, "arguments.x-dead-letter-routing-key"),
        ({"arguments": {}, "max_priority": 5}, "max_priority"),
        ({"arguments": {}, "exclusive": True}, "exclusive"),
        ({"arguments": []}, "arguments"),
        ({"arguments": {"deep": "x" * 20000}}, "arguments"),
    ],
)
def test_wrong_arguments_are_refused_by_name(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    assert error(http.put("/queues/%2F/never", json=body)) == (400, "invalid_input", field)
    assert http.get("/queues/%2F/never").status_code == 404


def test_arguments_are_no_setting_to_change(http: httpx.Client, queue: str) -> None:
    assert error(http.patch(queue, json={"arguments": {}})) == (400, "invalid_input", "arguments")


# --- queues with users


def gone(http: httpx.Client, path: str) -> bool:
    return http.get(path).status_code == 404


def test_a_queue_that_nobody_uses_goes_when_it_was_told_to(http: httpx.Client) -> None:
    http.put("/queues/%2F/brief", json={"arguments": {"x-expires": 50}})
    wait_for(lambda: gone(http, "/queues/%2F/brief"), "the queue goes by itself")
    assert http.put("/queues/unused").status_code == 201
    assert http.patch("/queues/unused", json={"expires_seconds": 0.05}).status_code == 200
    wait_for(lambda: gone(http, "/queues/unused"), "the queue goes by itself, told so later")


def test_a_queue_that_somebody_waits_on_is_used(http: httpx.Client) -> None:
    http.put("/queues/awaited", json={"expires_seconds": 0.05})
    assert dequeue(http, "/queues/awaited", wait_seconds=0.5) == []
    wait_for(lambda: gone(http, "/queues/awaited"), "the queue goes once nobody waits")


def test_an_exclusive_queue_is_its_connections_alone(serving: Serving, http: httpx.Client) -> None:
    session = serving.call(serving.broker.open_session, lambda push: None)
    serving.ask(DeclareQueue("/", "mine", QueueSettings(exclusive=True), session))
    for answer in (
        http.get("/queues/mine/get"),
        http.post("/queues/mine/dequeue"),
        http.put("/queues/mine"),
        http.patch("/queues/mine", json={"max_priority": 3}),
        http.delete("/queues/mine"),
    ):
        assert error(answer) == (409, "queue_in_use", "queue_name")
    assert http.get("/queues/mine").json()["exclusive"] is True
    serving.call(serving.broker.send, EndSession(session), lambda answer: None)
    wait_for(lambda: http.get("/queues/mine").status_code == 404, "the queue goes with its connection")


# --- properties


def test_properties_of_a_message_are_kept_and_shown(http: httpx.Client, queue: str) -> None:
    properties = {
        "reply_to": "answers",
        "message_id": "m:1",
        "type": "order",
        "app_id": "shop",
        "timestamp": 1700000000,
    }
    publish(http, queue, 1, properties={**properties, "content_encoding": "gzip"})
    (message,) = dequeue(http, queue)
    assert message["properties"] == {**properties, "content_encoding": "gzip"}
    (peeked,) = http.get(f"{queue}/messages?state=leased").json()["messages"]
    assert peeked["properties"] == message["properties"]


@pytest.mark.parametrize("name", ["delivery_mode", "expiration", "user_id", "amqp"])
def test_what_is_said_elsewhere_is_no_property_to_publish_with(http: httpx.Client, queue: str, name: str) -> None:
    answer = http.post(f"{queue}/messages", json={"payload": 1, "properties": {name: "2"}})
    assert error(answer) == (400, "invalid_input", f"properties.{name}")


def test_a_property_of_more_than_255_bytes_is_refused(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"{queue}/messages", json={"payload": 1, "properties": {"type": "é" * 200}})
    assert error(answer) == (400, "invalid_input", "properties.type")


def test_a_name_that_comes_twice_in_properties_is_refused(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"{queue}/messages", content=b'{"payload":1,"properties":{"type":"a","type":"b"}}')
    assert error(answer) == (400, "invalid_input", "type")


def test_what_another_protocol_says_is_shown_without_its_raw_bytes(
    serving: Serving, http: httpx.Client, queue: str
) -> None:
    headers = {"list": [1, b"\x00", [True]], "map": {"deep": {"bytes": b"\xff"}}, "none": None, "n": 1.5}
    extra = {"amqp": b"\x10\x00raw", "reply_to": "r", "delivery_mode": 2, "expiration": "60000", "user_id": "guest"}
    properties = Properties("text/plain", exchange="logs", routing_key="a.b", attributes=headers, extra=extra)
    name = queue.rpartition("/")[2]
    source = serving.broker.topology.find_queue("/", name)
    serving.ask(Publish((source.queue,), messages_of([Draft(b"hello", 1, properties)])))
    for path, options in ((f"{queue}/messages", {}), (f"{queue}/get", {"ack_mode": "ack_requeue_true"})):
        (message,) = http.get(path, params=options).json()["messages"]
        assert message["attributes"] == {
            "list": [1, {"binary": "AA=="}, [True]],
            "map": {"deep": {"bytes": {"binary": "/w=="}}},
            "none": None,
            "n": 1.5,
        }
        assert message["properties"] == {"delivery_mode": 2, "reply_to": "r", "expiration": "60000", "user_id": "guest"}
        assert (message["exchange"], message["routing_key"], message["payload"]) == ("logs", "a.b", "hello")
    assert get(http, queue)[0]["properties"]["reply_to"] == "r"
