"""POST …/messages."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from laneway.broker.interface import Publish
from laneway.core.message import Draft, Properties, messages_of
from laneway.frontends.rest.answers import DequeueAnswer, PublishAnswer
from laneway.frontends.rest.writing import AnswerWriter
from tests.rest.serving import Serving, request, take_responses

JSON = {"Content-Type": "application/json"}


def take(http: httpx.Client, queue: str, count: int = 1) -> list[dict[str, Any]]:
    answer = http.post(f"{queue}/dequeue", json={"max_messages": count})
    msgspec.json.decode(answer.content, type=DequeueAnswer)  # strictly what is described
    return list(answer.json()["messages"])


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("field")


def test_a_published_message_is_answered_with_its_receipt(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"{queue}/messages", json={"payload": {"order": 1}, "priority": 7})
    assert answer.status_code == 201
    receipt = msgspec.json.decode(answer.content, type=PublishAnswer)
    assert (receipt.queue_name, receipt.priority) == (queue.removeprefix("/queues/"), 7)
    assert receipt.visible_at == receipt.enqueued_at
    enqueued_at = datetime.fromisoformat(receipt.enqueued_at)
    assert abs(datetime.now(UTC) - enqueued_at) < timedelta(seconds=60)


def test_single_publishes_of_one_commit_are_each_told_their_own(
    serving: Serving, http: httpx.Client, queue: str
) -> None:
    asked: list[dict[str, Any]] = [
        {"payload": 0, "priority": 3},
        {"payload": 1, "priority": 3},
        {"payload": 2, "priority": 9},
        {"payload": 3, "priority": 200},
        {"payload": 4, "priority": 3, "delay_seconds": 60},
        {"payload": 5, "priority": 3, "dedup_id": "a"},
        {"payload": 6, "priority": 3, "dedup_id": "a"},
        {"payload": 7, "priority": 3},
    ]
    requests = [request("POST", f"{queue}/messages", json.dumps(one).encode()) for one in asked]
    written, _ = serving.transcript([b"".join(requests)], len(asked))
    answers = take_responses(written)
    assert [one.status for one in answers] == [201, 201, 201, 400, 201, 201, 201, 201]
    assert answers[3].json()["error"]["field"] == "priority"
    receipts = [one.json() for one in answers if one.status == 201]
    assert [one["priority"] for one in receipts] == [3, 3, 9, 3, 3, 3, 3]
    assert [one["visible_at"] != one["enqueued_at"] for one in receipts] == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert [n for n, one in enumerate(receipts) if one.get("duplicate")] == [5]
    assert receipts[4]["message_id"] == receipts[5]["message_id"]
    told = {one["message_id"]: n for one, n in zip(receipts, (0, 1, 2, 4, 5, 5, 7), strict=True)}
    assert [told[one["message_id"]] for one in take(http, queue, 10)] == [2, 0, 1, 5, 7]


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"true",
        b"-0",
        b"1.10",
        b"1e400",
        b"12345678901234567890123456789",
        b'""',
        b'"\\u00e9\\/\\n"',
        '"é \U0001f600"'.encode(),
        b"[]",
        b"[ 1 , 2 ]",
        b'{"b":1,  "a":{"b":2,"a":[{}]},"b":3}',
        b'{"payload":1,"payload":2,"x":":::"}',
    ],
)
def test_a_json_payload_comes_out_byte_for_byte(http: httpx.Client, queue: str, payload: bytes) -> None:
    body = b'{"payload" : ' + payload + b' ,"priority":3}'
    assert http.post(f"{queue}/messages", content=body, headers=JSON).status_code == 201
    answer = http.post(f"{queue}/dequeue", json={})
    assert b'"payload":' + payload + b',"attributes"' in answer.content


def test_everything_said_about_a_message_comes_back_with_it(http: httpx.Client, queue: str) -> None:
    said = {
        "attributes": {"s": "a:b", "i": -5, "f": 1.5, "t": True, "b": {"binary": "AP8="}},
        "correlation_id": "c",
        "group": "g",
        "key": "k",
        "tenant": "t",
        "dedup_id": "d",
    }
    assert http.post(f"{queue}/messages", json={"payload": 1, **said}).status_code == 201
    (message,) = take(http, queue)
    assert {name: message[name] for name in said} == said


def test_bytes_come_back_as_bytes_with_their_type(http: httpx.Client, queue: str) -> None:
    raw = bytes(range(256))
    body = {"payload_base64": base64.b64encode(raw).decode(), "content_type": "image/png"}
    assert http.post(f"{queue}/messages", json=body).status_code == 201
    http.post(f"{queue}/messages", json={"payload_base64": ""})
    image, empty = take(http, queue, 2)
    assert (base64.b64decode(image["payload_base64"]), image["content_type"]) == (raw, "image/png")
    assert (empty["payload_base64"], empty["content_type"]) == ("", "application/octet-stream")
    assert "payload" not in image


def test_a_body_that_is_no_json_is_the_message_itself(http: httpx.Client, queue: str) -> None:
    answer = http.post(
        f"{queue}/messages?priority=9&group=g&key=k&tenant=t&correlation_id=c%20d&dedup_id=x&ttl_seconds=60",
        content="héllo".encode(),
        headers={"Content-Type": "text/plain; charset=utf-8"},
    )
    assert (answer.status_code, answer.json()["priority"]) == (201, 9)
    (message,) = take(http, queue)
    assert (message["payload"], message["content_type"]) == ("héllo", "text/plain; charset=utf-8")
    names = ("group", "key", "tenant", "correlation_id", "dedup_id")
    assert [message[name] for name in names] == ["g", "k", "t", "c d", "x"]


def test_text_that_is_no_utf8_comes_as_bytes(http: httpx.Client, queue: str) -> None:
    http.post(f"{queue}/messages", content=b"\xff\xfe", headers={"Content-Type": "text/plain"})
    assert take(http, queue)[0]["payload_base64"] == "//4="


def test_text_can_be_given_as_a_string(http: httpx.Client, queue: str) -> None:
    http.post(f"{queue}/messages", json={"payload": "a\nb", "content_type": "text/csv"})
    http.post(f"{queue}/messages", json={"payload": {"specversion": "1.0"}, "content_type": "application/ce+json"})
    text, event = take(http, queue, 2)
    assert (text["payload"], text["content_type"]) == ("a\nb", "text/csv")
    assert (event["payload"], event["content_type"]) == ({"specversion": "1.0"}, "application/ce+json")


def test_a_body_called_json_by_others_that_is_none_breaks_nothing(
    serving: Serving, http: httpx.Client, queue: str
) -> None:
    """Other protocols pass on what a publisher calls JSON, unchecked."""
    target = serving.broker.topology.find_queue("/", queue.removeprefix("/queues/"))
    for body in (b'1,"x":', b"", b'"\xff"', b"[" * 5000 + b"]" * 5000):
        serving.ask(Publish((target.queue,), messages_of([Draft(body, properties=Properties())])))
    messages = take(http, queue, 4)
    assert [base64.b64decode(m["payload_base64"])[:6] for m in messages] == [b'1,"x":', b"", b'"\xff"', b"[" * 6]
    assert {m["content_type"] for m in messages} == {"application/json"}


def test_a_list_is_published_in_order_with_a_result_each(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"{queue}/messages", json=[{"payload": n} for n in range(100)])
    assert answer.status_code == 201 and len(answer.json()) == 100
    assert [m["message_id"] for m in take(http, queue, 100)] == [r["message_id"] for r in answer.json()]


def test_an_entry_that_the_queue_refuses_stands_in_its_place(http: httpx.Client, queue: str) -> None:
    entries = [{"payload": 0}, {"payload": 1, "priority": 11}, {"payload": 2}, {"payload": "x" * 300_000}]
    answer = http.post(f"{queue}/messages", json=entries)
    assert answer.status_code == 207
    told = [entry["error"]["code"] if "error" in entry else "ok" for entry in answer.json()]
    assert told == ["ok", "invalid_input", "ok", "message_too_large"]
    assert [entry["error"]["field"] for entry in answer.json() if "error" in entry] == ["priority", "payload"]
    assert [m["payload"] for m in take(http, queue, 10)] == [0, 2]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"payload":1,"bogus":1}', "bogus"),
        (b'[{"payload":1},{"payload":1,"bogus":1}]', "[1].bogus"),
        (b'{"payload":1,"priority":"high"}', "priority"),
        (b'{"payload":1,"priority":-1}', "priority"),
        (b'{"payload":1,"priority":1.5}', "priority"),
        (b'[{"payload":1},{"payload":1,"priority":true}]', "[1].priority"),
        (b'{"payload":1,"delay_seconds":901}', "delay_seconds"),
        (b'{"payload":1,"delay_seconds":-1}', "delay_seconds"),
        (b'{"payload":1,"ttl_seconds":0}', "ttl_seconds"),
        (b'{"payload":1,"deliver_at":"tomorrow"}', "deliver_at"),
        (b'{"payload":1,"deliver_at":"2026-01-01T10:00:00"}', "deliver_at"),
        (b'{"payload":1,"deliver_at":"1969-12-31T23:59:59Z"}', "deliver_at"),
        (b'{"payload":1,"deliver_at":"9999-01-01T00:00:00Z"}', "deliver_at"),
        (b'{"payload":1,"attributes":{"a":null}}', "attributes[...]"),
        (b'{"payload":1,"attributes":{"a":{"binary":"?"}}}', "attributes[...].binary"),
        (b'{"payload":1,"attributes":{"a":99999999999999999999}}', "attributes.a"),
        (b'{"payload":1,"group":"' + b"g" * 1025 + b'"}', "group"),
        (b'{"payload_base64":"a"}', "payload_base64"),
        (b'{"payload_base64":"e3s=","content_type":"application/json"}', "payload_base64"),
        (b'{"payload":1,"payload_base64":"YQ=="}', "payload_base64"),
        (b'{"payload":{},"content_type":"text/plain"}', "content_type"),
        (b'{"payload":"x","content_type":"image/png"}', "content_type"),
        (b"{}", "payload"),
        (b'[{"payload":1},{}]', "[1].payload"),
        (b'[{"payload":1},{"payload":1,"payload_base64":""}]', "[1].payload_base64"),
        (b'{"payload":1,"payload":2}', "payload"),
        (b'{"payload":1,"priority":2,"priority":2}', "priority"),
        (b'[{"payload":1}, {"payload":1, "priority":2, "priority":2}]', "priority"),
        (b'{"payload":1,"attributes":{"a":"1","a":"2"}}', "a"),
        (b'{"payload":1,"group":"x","gr\\u006fup":"y"}', "group"),
        (b"", None),
        (b"3", None),
        (b"[]", None),
        (b"nonsense", None),
        (b'{"payload":NaN}', None),
        (b'{"payload":1} 2', None),
        (b'{"payload":"\xff"}', None),
        (b'{"payload":"\xed\xa0\x80"}', None),
        (b'{"payload":"\\ud800"}', None),
        (b'{"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    http: httpx.Client, queue: str, body: bytes, field: str | None
) -> None:
    answer = http.post(f"{queue}/messages", content=body, headers=JSON)
    assert refusal(answer) == (400, "invalid_input", field)
    assert http.get(f"{queue}/stats").json()["approximate_message_count"] == 0


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("priority=x", "priority"),
        ("priority=1&priority=2", "priority"),
        ("bogus=1", "bogus"),
        ("delay_seconds=nan", "delay_seconds"),
        ("delay_seconds=1000", "delay_seconds"),
        ("group=%ff", None),
        ("&".join("a=1" for _ in range(100)), None),
    ],
)
def test_a_wrong_query_string_is_refused_by_name(http: httpx.Client, queue: str, query: str, field: str | None) -> None:
    answer = http.post(f"{queue}/messages?{query}", content=b"x", headers={"Content-Type": "text/plain"})
    assert refusal(answer) == (400, "invalid_input", field)


def test_blanks_and_colons_do_not_make_a_name_come_twice(http: httpx.Client, queue: str) -> None:
    plain = b'[ {"payload" : {"a:b" : "::"} , "priority" : 10}, {"payload":":"} ]'
    rich = json.dumps(
        {"payload": {"a": ":"}, "group": "a:b", "attributes": {"x:y": "http://z", "n": 1, "b": {"binary": ""}}}
    )
    late = b'{"payload":1,"deliver_at":"2020-01-01T00:00:00+01:00","priority":null}'
    for body in (plain, rich.encode(), late):
        assert http.post(f"{queue}/messages", content=body, headers=JSON).status_code == 201


def test_what_curl_calls_a_form_is_read_as_json(http: httpx.Client, queue: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.post(f"{queue}/messages", content=b'{"payload":1}', headers=form).status_code == 201
    assert take(http, queue)[0]["payload"] == 1
    assert refusal(http.post(f"{queue}/messages", content=b"a=1&b=2", headers=form))[0] == 400


def test_a_delayed_message_is_visible_when_due(serving: Serving, http: httpx.Client, queue: str) -> None:
    receipt = http.post(f"{queue}/messages", json={"payload": 1, "delay_seconds": 0.5}).json()
    delay = datetime.fromisoformat(receipt["visible_at"]) - datetime.fromisoformat(receipt["enqueued_at"])
    assert delay == timedelta(milliseconds=500)
    assert http.get(f"{queue}/stats").json()["delayed_count"] == 1
    (message,) = http.post(f"{queue}/dequeue", json={"wait_seconds": 5}).json()["messages"]
    assert message["message_id"] == receipt["message_id"]


def test_a_time_in_any_zone_is_understood(http: httpx.Client, queue: str) -> None:
    at = datetime.now(UTC) + timedelta(days=89)
    local = at.astimezone(tz=None).isoformat()
    receipt = http.post(f"{queue}/messages", json={"payload": 1, "deliver_at": local}).json()
    assert abs(datetime.fromisoformat(receipt["visible_at"]) - at) < timedelta(milliseconds=2)
    late = (at + timedelta(days=2)).isoformat()
    answer = http.post(f"{queue}/messages", json={"payload": 1, "deliver_at": late})
    assert refusal(answer) == (400, "invalid_input", "deliver_at")


def test_a_repeated_dedup_id_gives_the_first_id(http: httpx.Client, queue: str) -> None:
    first = http.post(f"{queue}/messages", json={"payload": 1, "dedup_id": "x"})
    again = http.post(f"{queue}/messages", json={"payload": 2, "dedup_id": "x"})
    assert again.json()["message_id"] == first.json()["message_id"]
    assert (first.json().get("duplicate"), again.json()["duplicate"]) == (None, True)
    assert "Idempotency-Replayed" not in again.headers


def test_a_repeated_idempotency_key_gives_the_first_answer(http: httpx.Client, queue: str) -> None:
    headers = {**JSON, "Idempotency-Key": "one"}
    for body in (b'{"payload":1}', b'[{"payload":1},{"payload":2}]'):
        headers["Idempotency-Key"] += "!"
        first = http.post(f"{queue}/messages", content=body, headers=headers)
        again = http.post(f"{queue}/messages", content=body, headers=headers)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.headers["Idempotency-Replayed"] == "true" and "Idempotency-Replayed" not in first.headers

        def ids(answer: httpx.Response) -> list[str]:
            told = answer.json()
            return [one["message_id"] for one in (told if isinstance(told, list) else [told])]

        assert ids(first) == ids(again)
    assert len(take(http, queue, 10)) == 3


def test_an_idempotency_key_with_another_body_is_a_conflict(http: httpx.Client, queue: str) -> None:
    headers = {**JSON, "Idempotency-Key": "two"}
    first = http.post(f"{queue}/messages", content=b'{"payload":1}', headers=headers).json()
    answer = http.post(f"{queue}/messages", content=b'{"payload":2}', headers=headers)
    assert refusal(answer) == (409, "idempotency_conflict", "Idempotency-Key")
    assert answer.json()["error"]["message_ids"] == [first["message_id"]]


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
def test_an_idempotency_key_is_visible_ascii(http: httpx.Client, queue: str, key: str) -> None:
    answer = http.post(f"{queue}/messages", json={"payload": 1}, headers={"Idempotency-Key": key.encode()})  # type: ignore[dict-item]
    assert refusal(answer) == (400, "invalid_input", "Idempotency-Key")


def test_a_full_queue_says_try_later(http: httpx.Client, queue: str) -> None:
    http.patch(queue, json={"max_messages": 1})
    assert http.post(f"{queue}/messages", json={"payload": 1}).status_code == 201
    answer = http.post(f"{queue}/messages", json={"payload": 1})
    assert refusal(answer)[:2] == (429, "queue_full") and answer.headers["Retry-After"]


def test_a_queue_that_does_not_exist_is_told_so(http: httpx.Client) -> None:
    answer = http.post("/queues/nope/messages", json={"payload": 1})
    assert refusal(answer) == (404, "queue_not_found", "queue_name")


def test_options_beside_a_json_body_are_not_ignored_silently(http: httpx.Client, queue: str) -> None:
    answer = http.post(f"{queue}/messages?priority=9", json={"payload": 1})
    assert refusal(answer) == (400, "invalid_input", "query")


def test_an_answer_that_cannot_be_made_is_an_internal_error(
    http: httpx.Client, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> list[str]:
        raise RuntimeError("planted")

    monkeypatch.setattr(AnswerWriter, "around_number", broken)
    answer = http.post(f"{queue}/messages", json={"payload": 1})
    assert refusal(answer) == (500, "internal_error", None)
    assert "planted" not in answer.text and "planted" in caplog.text
    monkeypatch.undo()
    assert len(take(http, queue)) == 1
