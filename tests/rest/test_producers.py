"""Batches over HTTP: staged as MessagePack or JSON, committed once, by those who may."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from laneway.frontends.rest.answers import CommittedAnswer, ProducerAnswer, ProducersAnswer, StagedAnswer
from tests.rest.serving import Serving
from tests.rest.test_access_over_http import as_root, make
from tests.rest.test_consume import dequeue, error

MSGPACK = {"Content-Type": "application/msgpack"}


def stage(http: httpx.Client, producer: str, part: str, messages: object, stage: str = "s") -> httpx.Response:
    path = f"/producers/{producer}/stages/{stage}/parts/{part}"
    return http.put(path, content=msgspec.msgpack.encode(messages), headers=MSGPACK)


def commit(http: httpx.Client, producer: str, batch: int | str, *parts: str, **body: Any) -> httpx.Response:
    wanted = {"stage": "s", "parts": parts, **body}
    return http.post(f"/producers/{producer}/batches/{batch}/commit", json=wanted)


def name_of(queue: str) -> str:
    return queue.removeprefix("/queues/")


def test_a_batch_is_staged_committed_and_told_apart_from_its_repeat(http: httpx.Client, queue: str) -> None:
    name = name_of(queue)
    message = {
        "queue": name,
        "body": b"\x00\xff",
        "priority": 7,
        "attributes": {"region": "eu", "n": 1, "raw": {"binary": b"\x01"}},
        "key": "k",
        "group": "g",
        "tenant": "t",
        "correlation_id": "c",
        "content_type": "image/png",
        "ttl_seconds": 60,
    }
    staged = stage(http, name, "0", [message, {"queue": name, "body": b"plain"}])
    assert staged.status_code == 201, staged.text
    assert msgspec.json.decode(staged.content, type=StagedAnswer).messages == 2
    shown = msgspec.json.decode(http.get(f"/producers/{name}").content, type=ProducerAnswer)
    assert (shown.last_batch, shown.committed_at, shown.staged.messages, shown.owner) == (None, None, 2, "guest")
    done = msgspec.json.decode(commit(http, name, 3, "0").content, type=CommittedAnswer)
    assert done == CommittedAnswer(name, 3, published=2, unrouted=0, duplicates=0, already=False)
    again = msgspec.json.decode(commit(http, name, 3, "0").content, type=CommittedAnswer)
    assert again.already and again.published == 2
    first, second = dequeue(http, queue, max_messages=5)
    assert base64.b64decode(first["payload_base64"]) == b"\x00\xff"
    assert {k: first[k] for k in ("priority", "content_type", "key", "group", "tenant", "correlation_id")} == {
        k: message[k] for k in ("priority", "content_type", "key", "group", "tenant", "correlation_id")
    }
    assert first["attributes"] == {"region": "eu", "n": 1, "raw": {"binary": "AQ=="}}
    assert (second["content_type"], base64.b64decode(second["payload_base64"])) == (
        "application/octet-stream",
        b"plain",
    )
    listed = msgspec.json.decode(http.get("/producers").content, type=ProducersAnswer).producers
    assert name in [producer.producer for producer in listed]
    assert error(commit(http, name, 2))[:2] == (409, "batch_fenced")
    assert http.delete(f"/producers/{name}").status_code == 204
    assert error(http.get(f"/producers/{name}"))[:2] == (404, "producer_not_found")


def test_a_batch_goes_through_exchanges_and_to_other_virtual_hosts(http: httpx.Client, queue: str) -> None:
    name = name_of(queue)
    http.put("/vhosts/elsewhere")
    http.put(f"/vhosts/elsewhere/queues/{name}")
    batch = [
        {"exchange": "amq.default", "routing_key": name, "body": b"1"},
        {"exchange": "amq.direct", "routing_key": "nowhere", "body": b"2"},
        {"vhost": "elsewhere", "queue": name, "body": b"3"},
    ]
    assert stage(http, name, "0", batch).status_code == 201
    refused = commit(http, name, 1, "0", mandatory=True)
    assert error(refused)[:2] == (409, "unroutable") and refused.json()["error"]["unrouted"] == 1
    answer = commit(http, name, 1, "0").json()
    assert (answer["published"], answer["unrouted"]) == (2, 1)
    assert len(dequeue(http, queue, max_messages=5)) == 1
    assert len(dequeue(http, f"/vhosts/elsewhere/queues/{name}", max_messages=5)) == 1


@pytest.mark.parametrize(
    ("messages", "status", "field", "words"),
    [
        ([{"queue": "q", "exchange": "x", "body": b""}], 400, "[0].queue", "a queue or through an exchange"),
        ([{"body": b""}], 400, "[0].queue", "a queue or through an exchange"),
        ([{"queue": "q"}], 400, "[0].body", "body"),
        ([{"queue": "q", "body": b"", "colour": 1}], 400, "[0].colour", "colour"),
        ([{"queue": "q", "body": b"", "priority": 256}], 400, "[0].priority", "255"),
        ([{"queue": "q", "body": "text"}], 400, "[0].body", "bytes"),
        ([{"queue": "no such queue", "body": b""}], 404, "[0].queue_name", "message 0: there is no queue"),
        ([], 400, None, "at least one message"),
        ([{"queue": "q", "body": b""}] * 20_001, 400, None, "20000"),
        ({"queue": "q"}, 400, None, "array"),
    ],
)
def test_a_bad_part_is_refused_by_its_place(
    http: httpx.Client, queue: str, messages: Any, status: int, field: str | None, words: str
) -> None:
    if isinstance(messages, list):
        messages = [{**m, **({"queue": name_of(queue)} if m.get("queue") == "q" else {})} for m in messages]
    answer = stage(http, "bad", "0", messages)
    assert answer.status_code == status, answer.text
    refusal = answer.json()["error"]
    assert refusal.get("field") == field and words in refusal["message"]


def test_what_is_no_message_pack_and_of_no_known_type_is_refused(http: httpx.Client) -> None:
    path = "/producers/p/stages/s/parts/0"
    answer = http.put(path, content=b"\xc1", headers=MSGPACK)
    assert error(answer)[:2] == (400, "invalid_input") and "no valid MessagePack" in answer.text
    assert error(http.put(path, content=b"x", headers={"Content-Type": "text/csv"}))[:2] == (
        415,
        "unsupported_media_type",
    )
    assert error(http.put(path, content=b'[{"queue": "a", "queue": "b", "body": ""}]'))[:2] == (400, "invalid_input")


@pytest.mark.parametrize("path", ["/producers/p/stages/a%2Fb/parts/0", "/producers/p/stages/s/parts/%C3%A9"])
def test_names_of_stages_and_parts_are_plain(http: httpx.Client, path: str) -> None:
    answer = http.put(path, json=[{"queue": "q", "body": ""}])
    assert error(answer)[:2] == (400, "invalid_input") and "letters, digits" in answer.text


@pytest.mark.parametrize("batch", ["x", "-1", "1.5", str(2**63), "9" * 30])
def test_a_batch_is_a_number(http: httpx.Client, batch: str) -> None:
    assert error(commit(http, "p", batch))[:2] == (400, "invalid_input")


def test_missing_parts_are_named_and_a_stage_can_be_given_up(http: httpx.Client, queue: str) -> None:
    name = name_of(queue)
    stage(http, name, "0", [{"queue": name, "body": b"1"}])
    refusal = commit(http, name, 1, "0", "1").json()["error"]
    assert (refusal["code"], refusal["missing"]) == ("parts_missing", ["1"])
    assert http.delete(f"/producers/{name}/stages/s").status_code == 204
    assert commit(http, name, 1, "0").json()["error"]["missing"] == ["0"]
    assert dequeue(http, queue) == []


def test_writing_takes_the_permission_to_write_when_it_is_staged_and_when_it_is_committed(
    own_serving: Callable[..., Serving],
) -> None:
    serving = own_serving()
    with serving.client() as http:
        http.put("/queues/orders")
        http.put("/queues/other")
        http.put("/accounts/root", json={"password": "secret", "roles": ["admin"]})
    both = [{"queue": "orders", "body": b"1"}, {"queue": "other", "body": b"2"}]
    with make(serving, "shop", permissions=[{"queue": "orders*", "write": True}]) as shop, as_root(serving) as root:
        assert error(stage(shop, "p", "0", both))[:2] == (403, "forbidden")
        through = [{"exchange": "amq.fanout", "body": b"1"}]
        assert error(stage(shop, "p", "0", through))[:2] == (403, "forbidden")
        assert stage(shop, "p", "0", both[:1]).status_code == 201
        root.put("/accounts/shop", json={"permissions": []})
        assert error(commit(shop, "p", 1, "0"))[:2] == (403, "forbidden")
        root.put("/accounts/shop", json={"permissions": [{"queue": "orders*", "write": True}]})
        assert commit(shop, "p", 1, "0").json()["published"] == 1
        assert root.get("/queues/orders/stats").json()["totals"]["published"] == 1


def test_a_producer_belongs_to_the_account_that_began_it(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.client() as http:
        http.put("/queues/orders")
        http.put("/accounts/root", json={"password": "secret", "roles": ["admin"]})
    may = [{"queue": "*", "write": True}]
    batch = [{"queue": "orders", "body": b"1"}]
    with make(serving, "one", permissions=may) as one, make(serving, "two", permissions=may) as two:
        assert stage(one, "p", "0", batch).status_code == 201
        assert error(stage(two, "p", "0", batch))[:2] == (403, "forbidden")
        assert error(two.delete("/producers/p/stages/s"))[:2] == (403, "forbidden")
        assert error(commit(two, "p", 1, "0"))[:2] == (403, "forbidden")
        assert commit(one, "p", 1, "0").status_code == 200
        for refused in (commit(two, "p", 2**62), two.get("/producers/p"), two.delete("/producers/p")):
            assert error(refused)[:2] == (403, "forbidden")
        assert two.get("/producers").json() == {"producers": []}
        assert [p["producer"] for p in one.get("/producers").json()["producers"]] == ["p"]
        with as_root(serving) as root:
            assert commit(root, "p", 2).json()["published"] == 0
            assert root.get("/producers/p").json()["owner"] == "one"
