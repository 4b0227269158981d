"""Dequeue, ack, nack, reject, visibility, and their batch forms."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from laneway.core.events import Leased
from laneway.frontends.rest.answers import DequeueAnswer, NackAnswer, SettledAnswer, VisibilityAnswer
from tests.in_thread import wait_for
from tests.rest.serving import Serving, request, staged
from tests.wire_broker import inside, queues_of


def publish(http: httpx.Client, queue: str, *payloads: object, **more: Any) -> list[str]:
    answer = http.post(f"{queue}/messages", json=[{"payload": payload, **more} for payload in payloads])
    assert answer.status_code == 201, answer.text
    return [receipt["message_id"] for receipt in answer.json()]


def dequeue(http: httpx.Client, queue: str, **asked: Any) -> list[dict[str, Any]]:
    answer = http.post(f"{queue}/dequeue", json=asked)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=DequeueAnswer)
    return list(answer.json()["messages"])


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    told = answer.json()["error"]
    return answer.status_code, told["code"], told.get("field")


def test_the_highest_priority_comes_first_and_the_oldest_within_it(http: httpx.Client, queue: str) -> None:
    for priority, payload in ((1, "a"), (9, "b"), (5, "c"), (9, "d")):
        publish(http, queue, payload, priority=priority)
    assert [m["payload"] for m in dequeue(http, queue, max_messages=10)] == ["b", "d", "c", "a"]


def test_an_empty_body_leases_one_message_for_the_queues_time(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    (message,) = http.post(f"{queue}/dequeue").json()["messages"]
    assert message["receive_count"] == 1
    lease = datetime.fromisoformat(message["visible_until"]) - datetime.fromisoformat(message["enqueued_at"])
    assert timedelta(seconds=30) <= lease < timedelta(seconds=60)


def test_a_lease_ends_after_the_time_asked_for(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1)
    (first,) = dequeue(http, queue, visibility_timeout=0.25)
    assert dequeue(http, queue) == []
    (second,) = dequeue(http, queue, wait_seconds=5)
    assert (first["message_id"], second["receive_count"]) == (second["message_id"], 2)
    answer = http.request("DELETE", f"{queue}/messages/{first['message_id']}", json=handle(first))
    assert error(answer) == (409, "lease_stale", "receipt_handle")


def test_a_long_poll_wakes_on_arrival(serving: Serving, http: httpx.Client, queue: str) -> None:
    found: list[Any] = []
    with serving.client() as other:
        waiting = threading.Thread(target=lambda: found.extend(dequeue(other, queue, wait_seconds=20)))
        waiting.start()
        wait_for(lambda: http.get(f"{queue}/stats").json()["consumers_waiting"] == 1, "it waits")
        publish(http, queue, "hello")
        waiting.join(5)
    assert [m["payload"] for m in found] == ["hello"]


def test_a_long_poll_ends_empty_after_its_time(http: httpx.Client, queue: str) -> None:
    assert dequeue(http, queue, wait_seconds=0.05) == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 1001}, "max_messages"),
        ({"max_messages": "1"}, "max_messages"),
        ({"wait_seconds": 20.1}, "wait_seconds"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"wait_seconds": 1e300}, "wait_seconds"),
        ({"visibility_timeout": 43201}, "visibility_timeout"),
        ({"visibility_timeout": -1}, "visibility_timeout"),
        ({"consumer_id": "x" * 257}, "consumer_id"),
        ({"consumer_id": "é" * 200}, "consumer_id"),
        ({"limit": 1}, "limit"),
        ([], None),
    ],
)
def test_what_a_dequeue_cannot_ask_is_refused_by_name(http: httpx.Client, queue: str, body: object, field: str) -> None:
    for _ in range(2):  # what was once refused is not remembered as good
        assert error(http.post(f"{queue}/dequeue", json=body)) == (400, "invalid_input", field)
    twice = http.post(f"{queue}/dequeue", content=b'{"max_messages":1,"max_messages":2}')
    assert error(twice) == (400, "invalid_input", "max_messages")


def test_a_body_that_is_no_json_is_not_understood(http: httpx.Client, queue: str) -> None:
    for kind in ("text/plain", "multipart/form-data"):
        answer = http.post(f"{queue}/dequeue", content=b"{}", headers={"Content-Type": kind})
        assert error(answer) == (415, "unsupported_media_type", "Content-Type")


def handle(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"receipt_handle": message["receipt_handle"], **more}


def of(queue: str, message: dict[str, Any], action: str = "") -> str:
    return f"{queue}/messages/{message['message_id']}{action}"


def test_an_acked_message_is_gone(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    first, second = dequeue(http, queue, max_messages=2)
    assert http.request("DELETE", of(queue, first), json=handle(first)).status_code == 204
    assert http.delete(of(queue, second), params=handle(second)).status_code == 204
    stats = http.get(f"{queue}/stats").json()
    assert (stats["in_flight_count"], stats["totals"]["acked"]) == (0, 2)
    again = http.request("DELETE", of(queue, first), json=handle(first))
    assert error(again) == (409, "lease_stale", "receipt_handle")


def test_a_handle_is_good_for_its_own_message_alone(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    first, second = dequeue(http, queue, max_messages=2)
    answer = http.request("DELETE", of(queue, first), json=handle(second))
    assert error(answer) == (400, "receipt_invalid", "receipt_handle")
    answer = http.request("DELETE", of(queue, first), json=handle(first, message_id=second["message_id"]))
    assert error(answer) == (400, "invalid_input", "message_id")
    assert error(http.request("DELETE", of(queue, first), json={"receipt_handle": "x"}))[1] == "receipt_invalid"
    assert error(http.request("DELETE", of(queue, first), json={}))[2] == "receipt_handle"
    assert error(http.delete(of(queue, first)))[0] == 400
    assert error(http.delete(of(queue, first), params={"receipt_handle": ""}))[2] == "receipt_handle"
    assert http.get(f"{queue}/stats").json()["in_flight_count"] == 2


def test_a_nacked_message_comes_back_to_its_place(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    first, second = dequeue(http, queue, max_messages=2)
    for message in (second, first):
        answer = http.post(of(queue, message, "/nack"), json=handle(message))
        assert answer.status_code == 200
        assert msgspec.json.decode(answer.content, type=NackAnswer).message_id == message["message_id"]
    assert [m["payload"] for m in dequeue(http, queue, max_messages=2)] == [1, 2]


def test_a_nack_may_delay_or_back_off(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1, 2)
    first, second = dequeue(http, queue, max_messages=2)
    delayed = http.post(of(queue, first, "/nack"), json=handle(first, delay_seconds=100)).json()
    backed_off = http.post(of(queue, second, "/nack"), json=handle(second, backoff=True)).json()
    ahead = datetime.fromisoformat(delayed["visible_at"]) - datetime.fromisoformat(backed_off["visible_at"])
    assert timedelta(seconds=97) < ahead <= timedelta(seconds=98)
    assert http.get(f"{queue}/stats").json()["delayed_count"] == 2


def test_a_nack_that_says_two_times_is_refused(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1)
    (message,) = dequeue(http, queue)
    answer = http.post(of(queue, message, "/nack"), json=handle(message, delay_seconds=1, backoff=True))
    assert error(answer) == (400, "invalid_input", "backoff")
    answer = http.post(of(queue, message, "/nack"), json=handle(message, delay_seconds=43201))
    assert error(answer) == (400, "invalid_input", "delay_seconds")


def test_a_rejected_message_is_a_dead_letter_with_its_reason(http: httpx.Client, queue: str) -> None:
    publish(http, queue, "bad")
    (message,) = dequeue(http, queue)
    assert http.post(of(queue, message, "/reject"), json=handle(message, reason="no such order")).status_code == 204
    (dead,) = http.get(f"{queue}/messages", params={"state": "dead"}).json()["messages"]
    told = dead["dead_letter"]
    assert (dead["message_id"], dead["state"]) == (message["message_id"], "dead")
    assert (told["origin"], told["reason"], told["detail"]) == (
        queue.removeprefix("/queues/"),
        "rejected",
        "no such order",
    )
    (death,) = told["deaths"]
    assert (told["receive_count"], death["count"], death["first_died_at"]) == (1, 1, told["died_at"])


def test_visibility_can_be_extended_shortened_and_ended(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1)
    (message,) = dequeue(http, queue)
    path = of(queue, message, "/visibility")
    answer = http.patch(path, json=handle(message, visibility_timeout=3600))
    told = msgspec.json.decode(answer.content, type=VisibilityAnswer)
    assert datetime.fromisoformat(told.visible_until) - datetime.fromisoformat(message["visible_until"]) > timedelta(
        seconds=3500
    )
    assert http.patch(path, json=handle(message, visibility_timeout=0)).status_code == 200
    assert [m["receive_count"] for m in dequeue(http, queue)] == [2]
    assert error(http.patch(path, json=handle(message, visibility_timeout=1))) == (409, "lease_stale", "receipt_handle")
    assert error(http.patch(path, json=handle(message)))[2] == "visibility_timeout"
    assert error(http.patch(path, json=handle(message, visibility_timeout=43201)))[2] == "visibility_timeout"


@pytest.mark.parametrize(
    ("form", "more", "status", "time"),
    [
        ("ack", {}, "acked", None),
        ("nack", {"delay_seconds": 5}, "released", "visible_at"),
        ("nack", {"backoff": True}, "released", "visible_at"),
        ("reject", {"reason": "why"}, "rejected", None),
        ("visibility", {"visibility_timeout": 90}, "extended", "visible_until"),
    ],
)
def test_a_batch_is_answered_entry_by_entry(
    http: httpx.Client, queue: str, form: str, more: dict[str, Any], status: str, time: str | None
) -> None:
    publish(http, queue, 1, 2, 3, 4)
    first, second, third, done = dequeue(http, queue, max_messages=4)
    assert http.request("DELETE", of(queue, done), json=handle(done)).status_code == 204
    body = [handle(first, **more), handle(second, message_id=second["message_id"], **more)]
    answer = http.post(f"{queue}/{form}", json=body)
    assert answer.status_code == 200
    told = msgspec.json.decode(answer.content, type=list[SettledAnswer])
    assert [one.status for one in told] == [status, status]
    assert "message_id" not in answer.json()[0] and answer.json()[1]["message_id"] == second["message_id"]
    assert all((time in one) == (time is not None) for one in answer.json()) or time is None
    mixed = http.post(f"{queue}/{form}", json=[handle(third, **more), handle(done, **more)])
    assert mixed.status_code == 207
    good, bad = mixed.json()
    assert good["status"] == status and bad["error"]["code"] == "lease_stale"


@pytest.mark.parametrize("form", ["ack", "nack", "reject", "visibility"])
def test_a_batch_has_one_to_a_thousand_entries(http: httpx.Client, queue: str, form: str) -> None:
    entry = {"receipt_handle": "0.0", **({"visibility_timeout": 1} if form == "visibility" else {})}
    assert error(http.post(f"{queue}/{form}", json=[]))[0] == 400
    too_many = http.post(f"{queue}/{form}", json=[entry] * 1001)
    assert error(too_many)[:2] == (400, "invalid_input") and "1000" in too_many.json()["error"]["message"]
    assert error(http.post(f"{queue}/{form}", json=entry))[0] == 400
    twice = b'[{"receipt_handle":"0.0","receipt_handle":"0.0","visibility_timeout":1}]'
    assert http.post(f"{queue}/{form}", content=twice).status_code == 400


def test_a_thousand_messages_make_the_round(http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(1000))
    messages = dequeue(http, queue, max_messages=1000)
    assert [m["payload"] for m in messages] == list(range(1000))
    answer = http.post(f"{queue}/ack", json=[handle(m) for m in messages])
    assert answer.status_code == 200 and answer.json() == [{"status": "acked"}] * 1000
    assert error(http.post(f"{queue}/messages", json=[{"payload": 1}] * 1001))[0] == 400


@pytest.mark.parametrize(
    "written", ['[{"receipt_handle":"%s"}]', '[{"receipt_handle": "%s"}]', '[\n{"receipt_handle" :"%s"}]']
)
def test_a_batch_of_acks_may_be_written_in_any_way(http: httpx.Client, queue: str, written: str) -> None:
    publish(http, queue, 1, 2)
    begin, end = written.split("%s")
    between = end[:-1] + "," + begin[1:]
    handles = [m["receipt_handle"] for m in dequeue(http, queue, max_messages=2)]
    answer = http.post(f"{queue}/ack", content=begin + between.join(handles) + end)
    assert answer.status_code == 200 and answer.json() == [{"status": "acked"}] * 2


def test_what_is_no_receipt_handle_in_a_batch_of_acks_is_told_so(http: httpx.Client, queue: str) -> None:
    publish(http, queue, 1)
    (message,) = dequeue(http, queue)
    good = message["receipt_handle"]
    for wrong in ("", "x" * 28, good[:-1], " " * 28, 'a"},{"a":"b'):
        answer = http.post(
            f"{queue}/ack", content=f'[{{"receipt_handle":"{wrong}"}},{{"receipt_handle":"ff{good[2:]}"}}]'
        )
        assert answer.status_code in (207, 400), answer.text
    twice = http.post(f"{queue}/ack", content=f'[{{"receipt_handle":"{good}"}},{{"receipt_handle":"{good}"}}]')
    assert [list(one) for one in twice.json()] == [["status"], ["error"]]


# --- several at once


def asking(queue: str, count: int, **more: Any) -> bytes:
    return request("POST", f"{queue}/dequeue", json.dumps({"max_messages": count, **more}).encode())


def test_consumers_who_ask_at_once_are_served_in_turn(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(9))
    with staged(serving, Leased) as leased:
        answers = serving.at_once([asking(queue, count) for count in (3, 2, 3, 3, 3)])
    assert [len(event.seqs) for event in leased] == [9], "they share one lease"
    taken = [one.json()["messages"] for one in answers]
    assert [[m["payload"] for m in messages] for messages in taken] == [[0, 1, 2], [3, 4], [5, 6, 7], [8], []]
    held = [message for messages in taken for message in messages]
    assert len({m["receipt_handle"] for m in held}) == 9
    handles = [{"receipt_handle": m["receipt_handle"]} for m in held]
    settled = http.post(f"{queue}/ack", content=json.dumps(handles, separators=(",", ":")))
    assert settled.json() == [{"status": "acked"}] * 9
    assert http.get(f"{queue}/stats").json()["in_flight_count"] == 0


def test_what_one_asks_for_is_not_what_another_gets(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(4))
    answers = serving.at_once(
        [
            asking(queue, 1, visibility_timeout=100),
            asking("/queues/nowhere", 1),
            asking(queue, 1, visibility_timeout=1000),
            asking("/queues/nowhere", 1),
            asking(queue, 0),
            asking(queue, 1, visibility_timeout=100, consumer_id="c"),
        ]
    )
    assert [one.status for one in answers] == [200, 404, 200, 404, 400, 200]
    leases = []
    for one in (answers[0], answers[2]):
        (message,) = one.json()["messages"]
        until = datetime.fromisoformat(message["visible_until"])
        leases.append(round((until - datetime.fromisoformat(message["enqueued_at"])).total_seconds() / 100))
    assert leases == [1, 10]
    (leased,) = http.get(f"{queue}/messages", params={"state": "leased", "limit": 10}).json()["messages"][2:]
    assert leased["consumer_id"] == "c"


@inside
def test_who_hung_up_before_it_was_served_holds_nothing(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(4))
    answers = serving.at_once([asking(queue, 2), asking(queue, 2), asking(queue, 2)], hang_up={1})
    assert [[m["payload"] for m in one.json()["messages"]] for one in answers] == [[0, 1], [2, 3]]


def test_those_who_find_nothing_wait_for_their_turn(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, 0)
    two_more = request("POST", f"{queue}/messages", b'[{"payload":1},{"payload":2}]')
    answers = serving.at_once([asking(queue, 1, wait_seconds=10)] * 3 + [two_more])
    assert [m["payload"] for one in answers[:3] for m in one.json()["messages"]] == [0, 1, 2]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
@pytest.mark.parametrize("spoil", ["nothing", "twice", "stale", "unknown"])
def test_many_handles_are_settled_one_by_one(
    http: httpx.Client, queue: str, separators: tuple[str, str], spoil: str
) -> None:
    """In whichever way they are written, and whether or not all are in order."""
    for priority in (1, 9, 5):
        publish(http, queue, *range(20), priority=priority)
    held = [m["receipt_handle"] for m in dequeue(http, queue, max_messages=60)]
    expected = ["acked"] * 60
    if spoil == "twice":
        held[30], expected[30] = held[29], "lease_stale"
    elif spoil == "stale":
        assert http.post(f"{queue}/ack", json=[{"receipt_handle": held[45]}]).status_code == 200
        expected[45] = "lease_stale"
    elif spoil == "unknown":
        held[10], expected[10] = "f" * 28, "lease_stale"
    body = json.dumps([{"receipt_handle": handle} for handle in held], separators=separators)
    answer = http.post(f"{queue}/ack", content=body)
    assert answer.status_code == (200 if spoil == "nothing" else 207)
    assert [one["status"] if "status" in one else one["error"]["code"] for one in answer.json()] == expected
    assert http.get(f"{queue}/stats").json()["in_flight_count"] == (1 if spoil in ("twice", "unknown") else 0)


def test_trouble_with_reading_is_told_to_all_who_asked(
    serving: Serving, http: httpx.Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(24, "Too many open files")

    publish(http, queue, *range(4))
    with monkeypatch.context() as patch:
        patch.setattr(queues_of(serving.partition).engine, "deliveries", broken)
        answers = serving.at_once([asking(queue, 1), asking(queue, 1), asking(queue, 1, visibility_timeout=5)])
    assert [one.status for one in answers] == [500, 500, 500]
    assert len(dequeue(http, queue, max_messages=10)) == 1  # the leases of the others expire
