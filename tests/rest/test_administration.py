"""Queues, statistics, peek, dead letters and tasks."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from laneway.core.settings import QueueSettings
from laneway.frontends.rest.answers import PeekAnswer, QueueAnswer, QueuesAnswer, StatsAnswer, TaskAnswer, TasksAnswer
from tests.in_thread import wait_for
from tests.rest.serving import Serving
from tests.rest.test_consume import dequeue, error, handle, of, publish
from tests.wire_broker import inside

SETTINGS = {
    "max_priority": 20,
    "default_priority": 3,
    "visibility_timeout": 12.5,
    "retention_seconds": 3600,
    "delay_seconds": 0.25,
    "message_ttl_seconds": 60,
    "max_receive_count": 3,
    "max_messages": 1000,
    "max_bytes": 100000,
    "overflow": "drop_oldest",
    "dedup_window_seconds": 10,
    "max_message_bytes": 2048,
    "durable": False,
    "auto_delete": True,
    "expires_seconds": 7200,
    "dead_letter_exchange": "amq.fanout",
    "dead_letter_routing_key": "dead",
    "keep_dead": False,
    "single_active_consumer": True,
    "retry_delay_seconds": 1.5,
    "max_retry_delay_seconds": 60,
    "retry_delay_after": "failure",
    "tier": "critical",
    "fair": True,
}


def test_a_queue_is_put_described_changed_and_deleted(http: httpx.Client) -> None:
    created = http.put("/queues/life", json=SETTINGS)
    assert created.status_code == 201
    msgspec.json.decode(created.content, type=QueueAnswer)
    assert {name: created.json()[name] for name in SETTINGS} == SETTINGS
    assert http.put("/queues/life", json=SETTINGS).status_code == 200
    assert http.get("/queues/life").json() == created.json()
    changed = http.patch("/queues/life", json={"max_priority": 5, "message_ttl_seconds": None})
    assert changed.status_code == 200
    assert (changed.json()["max_priority"], changed.json()["message_ttl_seconds"]) == (5, None)
    assert changed.json()["visibility_timeout"] == 12.5
    replaced = http.put("/queues/life", json={}).json()
    assert replaced["visibility_timeout"] == 30 and replaced["max_messages"] is None
    assert http.delete("/queues/life").status_code == 204
    assert error(http.get("/queues/life")) == (404, "queue_not_found", "queue_name")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("state=gone", "state is one of ready, leased, delayed, dead, or several with commas"),
        ("reason=gone", "reason is one of max_receives, expired, rejected, overflow"),
        ("attribute=region", "attribute is name:value"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_would_be_right(
    http: httpx.Client, queue: str, query: str, sentence: str
) -> None:
    answer = http.get(f"{queue}/messages?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["message"] == sentence


def test_an_unknown_reason_is_refused_instead_of_matching_nothing(http: httpx.Client, queue: str) -> None:
    for path in ("redrive", "dead-letters/delete"):
        assert error(http.post(f"{queue}/{path}", json={"reason": "no such customer"})) == (
            400,
            "invalid_input",
            "reason",
        )


def test_a_missing_body_is_called_that(http: httpx.Client, queue: str) -> None:
    for path in ("messages", "messages/01/nack", "ack"):
        assert http.post(f"{queue}/{path}").json()["error"]["message"] == "there is no body: JSON is expected"
    assert error(http.delete(f"{queue}/messages/01")) == (400, "invalid_input", "receipt_handle")


def test_every_setting_of_a_queue_can_be_set_over_http() -> None:
    from laneway.frontends.rest.wire import QueueSettingsRequest, settings_changes

    values: dict[str, Any] = {**SETTINGS, "dead_letter_queue": "d"}
    assert set(values) == set(QueueSettingsRequest.__struct_fields__)
    # An exclusive queue belongs to a connection, arguments are what a protocol declared it with, and policies say more.
    by_others = {"exclusive", "arguments", "policy", "operator_policy", "beneath"}
    settable = set(QueueSettings.__struct_fields__) - by_others
    assert set(settings_changes(QueueSettingsRequest(**values))) == settable


@pytest.mark.parametrize(
    ("settings", "field", "word"),
    [
        ({"visibility_timeout": 43201}, "visibility_timeout", "43200"),
        ({"max_priority": 256}, "max_priority", "255"),
        ({"max_priority": None}, "max_priority", "int"),
        ({"default_priority": 11}, "default_priority", "max_priority 10"),
        ({"retention_seconds": 59}, "retention_seconds", "60"),
        ({"overflow": "explode"}, "overflow", "reject"),
        ({"dead_letter_queue": "nope"}, "dead_letter_queue", "create it first"),
        ({"lease_ms": 5}, "lease_ms", "unknown"),
        ({"max_receive_count": 0}, "max_receive_count", "1"),
        ({"expires_seconds": 0}, "expires_seconds", "0.001"),
        ({"dead_letter_exchange": "x" * 256}, "dead_letter_exchange", "255"),
        ({"dead_letter_routing_key": "k"}, "dead_letter_routing_key", "dead_letter_exchange"),
        ({"keep_dead": None}, "keep_dead", "bool"),
    ],
)
def test_a_wrong_setting_is_refused_in_the_words_of_the_wire(
    http: httpx.Client, queue: str, settings: dict[str, Any], field: str, word: str
) -> None:
    for answer in (http.put("/queues/never", json=settings), http.patch(queue, json=settings)):
        assert error(answer) == (400, "invalid_input", field)
        assert word in answer.json()["error"]["message"] and "_ms" not in answer.json()["error"]["message"].replace(
            field, ""
        )


def test_a_setting_given_twice_is_refused(http: httpx.Client, queue: str) -> None:
    answer = http.patch(queue, content=b'{"max_priority":3,"max_priority":4}')
    assert error(answer) == (400, "invalid_input", "max_priority")


def test_queues_are_listed_in_pages(http: httpx.Client) -> None:
    names = [f"page-{n:02d}" for n in range(7)]
    for name in reversed(names):
        http.put(f"/queues/{name}")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    sizes = []
    while True:
        answer = http.get("/queues", params={"prefix": "page-", "limit": 3, **cursor})
        page = msgspec.json.decode(answer.content, type=QueuesAnswer)
        seen += [queue.queue_name for queue in page.queues]
        sizes.append(len(page.queues))
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
    assert (seen, sizes) == (names, [3, 3, 1])
    assert error(http.get("/queues", params={"cursor": "???"})) == (400, "invalid_input", "cursor")
    assert error(http.get("/queues", params={"limit": 1001})) == (400, "invalid_input", "limit")


def test_a_queue_with_messages_is_deleted_only_when_that_is_meant(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1)
    assert error(http.delete(queue, params={"if_empty": "true"}))[:2] == (409, "conflict")
    assert http.delete(queue).status_code == 204


def test_purge_says_how_many(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2, 3)
    dequeue(http, queue)
    assert http.post(f"{queue}/purge").json() == {"purged": 2}


def test_statistics_add_up(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2, 3, priority=10)
    publish(http, queue, 4, priority=2)
    publish(http, queue, 5, delay_seconds=100)
    dequeue(http, queue)
    answer = http.get(f"{queue}/stats")
    stats = msgspec.json.decode(answer.content, type=StatsAnswer)
    assert (stats.approximate_message_count, stats.in_flight_count, stats.delayed_count) == (4, 1, 1)
    assert answer.json()["messages_by_priority"] == {"10": 2, "2": 1}
    assert stats.oldest_message_age_seconds is not None and stats.oldest_message_age_seconds < 60
    assert (stats.totals["published"], stats.totals["delivered"]) == (5, 1)
    assert set(stats.rates) == {"published", "delivered", "acked"} and stats.waiting_bytes > 0


def peek(http: httpx.Client, queue: str, **query: Any) -> PeekAnswer:
    answer = http.get(f"{queue}/messages", params=query)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=PeekAnswer)


def test_peek_shows_every_state_without_leasing(http: httpx.Client, queue: str) -> None:
    publish(http, queue, "ready", priority=1)
    publish(http, queue, "delayed", delay_seconds=100)
    publish(http, queue, "leased", "dead", priority=9)
    _, dead = dequeue(http, queue, max_messages=2, consumer_id='worker "1"')
    http.post(of(queue, dead, "/reject"), json=handle(dead))
    for state in ("ready", "delayed", "leased", "dead"):
        (message,) = peek(http, queue, state=state).messages
        assert (message.state, bytes(message.payload)) == (state, f'"{state}"'.encode())
    assert peek(http, queue, state="leased").messages[0].consumer_id == 'worker "1"'
    assert len(peek(http, queue, state="ready,delayed,leased,dead").messages) == 4
    assert http.get(f"{queue}/stats").json()["totals"]["delivered"] == 2


def test_peek_goes_page_by_page(http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(7))
    seen: list[bytes] = []
    cursor: dict[str, str] = {}
    while True:
        page = peek(http, queue, limit=3, **cursor)
        seen += [bytes(m.payload) for m in page.messages]
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
    assert seen == [str(n).encode() for n in range(7)]


def test_peek_filters(http: httpx.Client, queue: str) -> None:
    publish(http, queue, "eu", attributes={"region": "eu:west", "n": 1})
    publish(http, queue, "us", attributes={"region": "us"}, priority=9)
    for query, found in (
        ({"attribute": "region:eu:west"}, [b'"eu"']),
        ({"attribute": "n:1"}, [b'"eu"']),
        ({"priority": 9}, [b'"us"']),
        ({"older_than_seconds": 60}, []),
        ({"newer_than_seconds": 60}, [b'"us"', b'"eu"']),
        ({"reason": "expired"}, []),
    ):
        assert [bytes(m.payload) for m in peek(http, queue, **query).messages] == found, query


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "lost"}, "state"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"attribute": "nocolon"}, "attribute"),
        ({"cursor": "x"}, "cursor"),
        ({"older_than_seconds": "nan"}, "older_than_seconds"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_a_wrong_peek_is_refused_by_name(http: httpx.Client, queue: str, query: dict[str, Any], field: str) -> None:
    assert error(http.get(f"{queue}/messages", params=query)) == (400, "invalid_input", field)


def test_a_page_of_peek_is_bounded_in_bytes(own_serving) -> None:  # type: ignore[no-untyped-def]
    with own_serving(peek_bytes=10_000).client() as http:
        http.put("/queues/q")
        publish(http, "/queues/q", *("x" * 4000 for _ in range(5)))
        page = peek(http, "/queues/q", limit=100)
        assert len(page.messages) == 3 and page.next_cursor is not None


def bury(http: httpx.Client, queue: str, *payloads: object, **more: Any) -> list[dict[str, Any]]:
    publish(http, queue, *payloads, **more)
    messages = dequeue(http, queue, max_messages=len(payloads))
    http.post(f"{queue}/reject", json=[handle(m) for m in messages])
    return messages


def test_dead_letters_are_redriven_as_a_task(http: httpx.Client, queue: str) -> None:
    bury(http, queue, 1, 2, 3)
    started = http.post(f"{queue}/redrive", json={})
    assert started.status_code == 202
    task = msgspec.json.decode(started.content, type=TaskAnswer)
    assert started.headers["Location"] == f"/tasks/{task.task_id}"

    def finished() -> bool:
        return bool(http.get(f"/tasks/{task.task_id}").json()["state"] == "completed")

    wait_for(finished, "the redrive is done")
    told = http.get(f"/tasks/{task.task_id}").json()
    assert (told["moved"], told["matched"], told["failed"], told["error"]) == (3, 3, 0, None)
    assert told["finished_at"] >= told["created_at"]
    listed = msgspec.json.decode(http.get(f"{queue}/redrive").content, type=TasksAnswer)
    assert [t.task_id for t in listed.tasks] == [task.task_id]
    back = dequeue(http, queue, max_messages=10)
    assert [(m["payload"], m["receive_count"]) for m in back] == [(1, 1), (2, 1), (3, 1)]


def test_a_redrive_can_be_narrowed_aimed_and_cancelled(http: httpx.Client, queue: str) -> None:
    dead = bury(http, queue, *range(5), attributes={"kind": "x"})
    http.put(f"{queue}-target")
    body = {"message_ids": [dead[0]["message_id"]], "target": f"{queue.removeprefix('/queues/')}-target"}
    assert http.post(f"{queue}/redrive", json=body).status_code == 202
    wait_for(lambda: len(peek(http, f"{queue}-target").messages) == 1, "one is moved")
    slow = http.post(f"{queue}/redrive", json={"attribute": {"name": "kind", "value": "x"}, "max_per_second": 1}).json()
    cancelled = http.post(f"/tasks/{slow['task_id']}/cancel").json()
    assert cancelled["state"] == "cancelled" and cancelled["moved"] < 4
    assert error(http.post(f"{queue}/redrive", json={"target": "nowhere"}))[:2] == (404, "queue_not_found")
    assert error(http.post(f"{queue}/redrive", json={"max_per_second": 0}))[2] == "max_per_second"
    assert error(http.get("/tasks/none")) == (404, "task_not_found", "task_id")


def test_dead_letters_are_deleted_by_filter_or_all_on_purpose(http: httpx.Client, queue: str) -> None:
    dead = bury(http, queue, 1, 2, 3)
    path = f"{queue}/dead-letters/delete"
    assert http.post(path, json={"message_ids": [dead[0]["message_id"]]}).json() == {"deleted": 1}
    for meaningless in ({}, {"all": True, "reason": "rejected"}):
        assert error(http.post(path, json=meaningless)) == (400, "invalid_input", "all")
    assert http.post(path, json={"reason": "expired"}).json() == {"deleted": 0}
    assert http.post(path, json={"all": True}).json() == {"deleted": 2}


def test_dead_letters_go_to_their_queue_with_their_history(serving: Serving, http: httpx.Client, queue: str) -> None:
    name = queue.removeprefix("/queues/")
    http.put(f"{queue}-dead")
    http.patch(queue, json={"dead_letter_queue": f"{name}-dead", "max_receive_count": 1})
    bury(http, queue, "x", correlation_id="c")
    assert http.get(f"{queue}/stats").json()["dlq_count"] == 1
    (message,) = dequeue(http, f"{queue}-dead")
    assert (message["dead_letter"]["origin"], message["dead_letter"]["reason"]) == (name, "rejected")
    assert message["correlation_id"] == "c"
    assert error(http.delete(f"{queue}-dead"))[:2] == (409, "queue_in_use")


def test_health_and_the_root_need_no_account(serving: Serving) -> None:
    with serving.client(headers={"Host": "some.name"}) as http:
        assert http.get("/healthz").json() == {"state": "alive", "slow_turns": 0, "longest_turn_ms": 0}
        for path in ("/readyz", "/readyz/publish", "/readyz/consume"):
            assert http.get(path).json() == {"state": "ready"}
        assert http.get("/").json()["name"] == "laneway"


@inside
def test_a_node_that_is_not_ready_says_so(own_serving) -> None:  # type: ignore[no-untyped-def]
    serving = own_serving()
    with serving.client() as http:
        http.put("/queues/q")
        serving.partition._phase = "starting"
        for path in ("/readyz", "/readyz/publish", "/readyz/consume"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["error"]["state"]) == (503, "starting")
        assert error(http.post("/queues/q/messages", json={"payload": 1}))[:2] == (503, "unavailable")
        serving.partition._phase = "ready"


def test_consumers_are_served_by_a_node_that_takes_no_messages(own_serving) -> None:  # type: ignore[no-untyped-def]
    """So load balancers must not cut them off."""
    serving = own_serving()
    with serving.client() as http:
        serving.partition.is_memory_short = True
        wait_for(lambda: http.get("/readyz").status_code == 503, "the front end has heard of it")
        said = {path: http.get(f"/readyz{path}") for path in ("", "/publish", "/consume")}
        assert {path: answer.status_code for path, answer in said.items()} == {
            "": 503,
            "/publish": 503,
            "/consume": 200,
        }
        assert said["/consume"].json() == {"state": "memory_low"}
