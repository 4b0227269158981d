"""Exchanges and bindings over HTTP: declared, published through, asked where a message would go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from laneway.frontends.rest.answers import (
    BindingAnswer,
    BindingsAnswer,
    ExchangeAnswer,
    ExchangesAnswer,
    RoutedAnswer,
    RoutesAnswer,
)
from tests.rest.serving import Serving
from tests.rest.test_consume import dequeue, error

_numbers = itertools.count(1)


class Place:
    """A virtual host of a test's own."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.vhost = f"place{next(_numbers)}"
        assert http.put(f"/vhosts/{self.vhost}").status_code == 201

    def queue(self, name: str, **settings: Any) -> str:
        path = f"/vhosts/{self.vhost}/queues/{name}"
        assert self.http.put(path, json=settings).status_code == 201
        return path

    def exchange(self, name: str, **settings: Any) -> str:
        answer = self.http.put(f"/exchanges/{self.vhost}/{name}", json=settings)
        assert answer.status_code == 201, answer.text
        return f"/exchanges/{self.vhost}/{name}"

    def bind(self, exchange: str, queue: str, key: str = "", **arguments: Any) -> None:
        path = f"/bindings/{self.vhost}/e/{exchange}/q/{queue}"
        answer = self.http.post(path, json={"routing_key": key, "arguments": arguments})
        assert answer.status_code == 201, answer.text
        msgspec.json.decode(answer.content, type=BindingAnswer)

    def publish(self, exchange: str, key: str = "", payload: object = 1, **more: Any) -> dict[str, Any]:
        body = {"routing_key": key, "payload": payload, **more}
        answer = self.http.post(f"/exchanges/{self.vhost}/{exchange}/publish", json=body)
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=RoutedAnswer)
        return dict(answer.json())

    def route(self, exchange: str, key: str = "", **attributes: Any) -> dict[str, Any]:
        body = {"routing_key": key, "attributes": attributes}
        answer = self.http.post(f"/exchanges/{self.vhost}/{exchange}/route", json=body)
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=RoutesAnswer)
        return dict(answer.json())


@pytest.fixture
def place(http: httpx.Client) -> Place:
    return Place(http)


def queues_of(answer: dict[str, Any]) -> list[str]:
    return sorted(one["queue_name"] for one in answer["queues"])


# --- exchanges


def test_an_exchange_is_declared_seen_and_deleted(http: httpx.Client, place: Place) -> None:
    path = f"/exchanges/{place.vhost}/logs"
    made = http.put(path, json={"type": "topic", "alternate_exchange": "rest", "auto_delete": True})
    assert made.status_code == 201
    told = msgspec.json.decode(made.content, type=ExchangeAnswer)
    assert (told.exchange_name, told.vhost, told.type) == ("logs", place.vhost, "topic")
    assert (told.auto_delete, told.alternate_exchange, told.built_in, told.binding_count) == (True, "rest", False, 0)
    same = {"type": "topic", "auto_delete": True, "arguments": {"alternate-exchange": "rest"}}  # as AMQP says it
    again = http.put(path, json=same)
    assert again.status_code == 200 and again.json() == made.json() == http.get(path).json()
    assert http.get(f"/vhosts/{place.vhost}/exchanges/logs").json() == made.json()
    assert error(http.put(path, json={"type": "fanout"})) == (409, "exchange_exists", "exchange")
    assert http.delete(path).status_code == 204
    assert error(http.get(path)) == (404, "exchange_not_found", "exchange")
    assert error(http.delete(path)) == (404, "exchange_not_found", "exchange")


def test_a_delayed_exchange_can_be_said_in_two_ways(http: httpx.Client, place: Place) -> None:
    path = place.exchange("later", type="topic", delayed=True)
    told = http.get(path).json()
    assert (told["type"], told["delayed"], told["arguments"]) == ("topic", True, {"x-delayed-type": "topic"})
    as_amqp = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}
    assert http.put(path, json=as_amqp).json() == told
    queue = place.queue("q")
    place.bind("later", "q", "a")
    place.publish("later", "a", attributes={"x-delay": 60_000})
    place.publish("later", "a", payload="now")
    assert [m["payload"] for m in dequeue(http, queue, max_messages=9)] == ["now"]
    assert http.get(f"{queue}/stats").json()["delayed_count"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "round"}, "type"),
        ({"type": "x-delayed-message"}, "arguments.x-delayed-type"),
        ({"type": "x-delayed-message", "arguments": {"x-delayed-type": "round"}}, "arguments.x-delayed-type"),
        ({"alternate_exchange": "a", "arguments": {"alternate-exchange": "b"}}, "arguments.alternate-exchange"),
        ({"arguments": {"alternate-exchange": 5}}, "arguments.alternate-exchange"),
        ({"colour": "red"}, "colour"),
        ({"durable": "yes"}, "durable"),
    ],
)
def test_a_wrong_exchange_is_refused(http: httpx.Client, place: Place, body: dict[str, Any], field: str) -> None:
    assert error(http.put(f"/exchanges/{place.vhost}/x", json=body)) == (400, "invalid_input", field)


def test_built_in_exchanges_are_there_and_stay(http: httpx.Client, place: Place) -> None:
    listed = msgspec.json.decode(http.get(f"/exchanges/{place.vhost}").content, type=ExchangesAnswer)
    names = [one.exchange_name for one in listed.exchanges]
    assert {"amq.default", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"} <= set(names)
    assert names == sorted(names) and all(one.built_in and one.created_at is None for one in listed.exchanges)
    for name in ("amq.default", "amq.topic"):
        assert http.get(f"/exchanges/{place.vhost}/{name}").json()["built_in"] is True
        assert error(http.delete(f"/exchanges/{place.vhost}/{name}")) == (400, "invalid_input", "exchange")
    assert error(http.put(f"/exchanges/{place.vhost}/amq.mine")) == (400, "invalid_input", "exchange")


def test_exchanges_are_listed_in_pages(http: httpx.Client, place: Place) -> None:
    names = [f"page-{n}" for n in range(7)]
    for name in reversed(names):
        place.exchange(name)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = http.get(f"/exchanges/{place.vhost}", params={"prefix": "page-", "limit": 3, **cursor}).json()
        seen += [one["exchange_name"] for one in answer["exchanges"]]
        if answer["next_cursor"] is None:
            break
        cursor = {"cursor": answer["next_cursor"]}
    assert seen == names
    assert error(http.get(f"/exchanges/{place.vhost}?cursor=x")) == (400, "invalid_input", "cursor")


def test_an_exchange_with_bindings_is_deleted_only_when_that_is_meant(http: httpx.Client, place: Place) -> None:
    path = place.exchange("used")
    place.queue("q")
    place.bind("used", "q", "k")
    assert error(http.delete(path, params={"if_unused": "true"})) == (409, "exchange_in_use", "if_unused")
    assert http.delete(path).status_code == 204


def test_nothing_is_declared_or_asked_where_there_is_no_virtual_host(http: httpx.Client) -> None:
    for answer in (
        http.put("/exchanges/nowhere/x"),
        http.get("/exchanges/nowhere"),
        http.get("/exchanges/nowhere/amq.topic"),
        http.get("/bindings/nowhere"),
        http.post("/exchanges/nowhere/amq.topic/route"),
        http.post("/exchanges/nowhere/amq.topic/publish", json={"payload": 1}),
    ):
        assert error(answer) == (404, "vhost_not_found", "vhost")


# --- bindings


def test_a_binding_is_made_seen_and_removed(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.exchange("x", type="topic")
    path = f"/bindings/{place.vhost}/e/x/q/q"
    made = http.post(path, json={"routing_key": "a.#"})
    assert made.status_code == 201
    told = {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "a.#", "arguments": {}}
    assert made.json() == told
    assert http.post(path, json={"routing_key": "a.#"}).status_code == 200
    assert http.post(path).status_code == 201  # without a routing key, beside the other
    listed = msgspec.json.decode(http.get(path).content, type=BindingsAnswer)
    assert [one.routing_key for one in listed.bindings] == ["", "a.#"]
    assert http.get(f"/bindings/{place.vhost}").json() == http.get(path).json()
    assert http.get(f"/vhosts/{place.vhost}/bindings/e/x/q/q").json() == http.get(path).json()
    assert error(http.delete(f"{path}?routing_key=b")) == (404, "binding_not_found", "routing_key")
    assert http.delete(path).status_code == 204  # the one without
    assert http.delete(f"{path}?routing_key=a.%23").status_code == 204
    assert http.get(path).json() == {"bindings": [], "next_cursor": None}


def test_bindings_differ_by_their_arguments(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.exchange("x", type="headers")
    place.bind("x", "q", region="eu")
    place.bind("x", "q", region="us", **{"x-match": "any"}, digest={"binary": "AP8="})
    path = f"/bindings/{place.vhost}/e/x/q/q"
    shown = [one["arguments"] for one in http.get(path).json()["bindings"]]
    assert {"digest": {"binary": "AP8="}, "region": "us", "x-match": "any"} in shown and {"region": "eu"} in shown
    removed = http.request("DELETE", path, json={"arguments": {"region": "eu"}})
    assert removed.status_code == 204
    assert len(http.get(path).json()["bindings"]) == 1
    wrong = {"arguments": {"x-match": "some"}}
    assert error(http.post(path, json=wrong))[:2] == (400, "invalid_input")


def test_bindings_are_listed_in_pages(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.exchange("x")
    for n in range(7):
        place.bind("x", "q", f"k{n}")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = http.get(f"/bindings/{place.vhost}", params={"limit": 3, **cursor}).json()
        seen += [one["routing_key"] for one in answer["bindings"]]
        if answer["next_cursor"] is None:
            break
        cursor = {"cursor": answer["next_cursor"]}
    assert seen == [f"k{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("ends", "code"),
    [("e/none/q/q", "exchange_not_found"), ("e/x/q/none", "queue_not_found"), ("e/x/e/none", "exchange_not_found")],
)
def test_both_ends_of_a_binding_must_be_there(http: httpx.Client, place: Place, ends: str, code: str) -> None:
    place.queue("q")
    place.exchange("x")
    path = f"/bindings/{place.vhost}/{ends}"
    for answer in (http.post(path), http.get(path), http.delete(path)):
        assert error(answer)[:2] == (404, code)


def test_the_default_exchange_binds_by_itself_and_not_otherwise(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    path = f"/bindings/{place.vhost}/e/amq.default/q/q"
    assert [one["routing_key"] for one in http.get(path).json()["bindings"]] == ["q"]
    assert error(http.post(path, json={"routing_key": "k"})) == (400, "invalid_input", "exchange")


# --- publishing


def test_a_message_goes_to_every_queue_it_is_routed_to(http: httpx.Client, place: Place) -> None:
    eu, everything = place.queue("eu"), place.queue("everything", max_priority=3)
    place.exchange("orders", type="topic")
    place.bind("orders", "eu", "orders.eu.*")
    place.bind("orders", "everything", "orders.#")
    answer = place.publish("orders", "orders.eu.new", {"id": 1}, priority=9, attributes={"a": 1}, correlation_id="c")
    assert (answer["routed"], answer["queue_count"], queues_of(answer)) == (True, 2, ["eu", "everything"])
    ids = {one["queue_name"]: one["message_id"] for one in answer["queues"]}
    for path, name, priority in ((eu, "eu", 9), (everything, "everything", 3)):
        (message,) = dequeue(http, path)
        assert (message["payload"], message["message_id"], message["priority"]) == ({"id": 1}, ids[name], priority)
        assert (message["exchange"], message["routing_key"]) == ("orders", "orders.eu.new")
        assert (message["attributes"], message["correlation_id"]) == ({"a": 1}, "c")


def test_a_priority_that_a_queue_does_not_have_comes_back_where_there_is_one(http: httpx.Client, place: Place) -> None:
    """A queue takes the message at its own highest; as a dead letter it has the priority that it was given."""
    dead = place.queue("dead")
    low = place.queue("low", max_priority=3, dead_letter_exchange="", dead_letter_routing_key="dead")
    place.bind("amq.direct", "low", "k")
    place.publish("amq.direct", "k", priority=9)
    (message,) = dequeue(http, low)
    assert message["priority"] == 3 and "properties" not in message
    handle = {"receipt_handle": message["receipt_handle"]}
    assert http.post(f"{low}/messages/{message['message_id']}/reject", json=handle).status_code == 204
    assert [m["priority"] for m in dequeue(http, dead)] == [9]


def test_a_message_that_is_routed_nowhere_says_so(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    assert place.publish("amq.direct", "k") == {"routed": False, "queue_count": 0, "queues": []}


def test_the_default_exchange_leads_to_the_queue_of_that_name(http: httpx.Client, place: Place) -> None:
    queue = place.queue("named")
    assert queues_of(place.publish("amq.default", "named", "hello")) == ["named"]
    (message,) = dequeue(http, queue)
    assert (message["routing_key"], message.get("exchange")) == ("named", None)
    assert place.publish("amq.default", "other")["routed"] is False


def test_exchanges_lead_on_to_others(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.exchange("first", type="fanout")
    place.exchange("second", internal=True)
    path = f"/bindings/{place.vhost}/e/first/e/second"
    assert http.post(path, json={}).json()["destination_type"] == "exchange"
    place.bind("second", "q", "k")
    assert queues_of(place.publish("first", "k")) == ["q"]
    body = {"routing_key": "k", "payload": 1}
    refused = http.post(f"/exchanges/{place.vhost}/second/publish", json=body)
    assert error(refused) == (400, "invalid_input", "exchange") and "internal" in refused.json()["error"]["message"]


def test_attributes_choose_in_a_headers_exchange(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.bind("amq.headers", "q", "", region="eu", size=3)
    assert place.publish("amq.headers", attributes={"region": "eu", "size": 3})["routed"] is True
    assert place.publish("amq.headers", attributes={"region": "eu", "size": 4})["routed"] is False


def test_a_queue_that_is_full_refuses_and_the_others_take_it(http: httpx.Client, place: Place) -> None:
    place.queue("full", max_messages=0)
    free = place.queue("free")
    place.bind("amq.fanout", "full")
    path = f"/exchanges/{place.vhost}/amq.fanout/publish"
    assert error(http.post(path, json={"payload": 1}))[:2] == (429, "queue_full")
    place.bind("amq.fanout", "free")
    answer = http.post(path, json={"payload": 2})
    assert answer.status_code == 207
    msgspec.json.decode(answer.content, type=RoutedAnswer)
    told = {one["queue_name"]: one.get("error", {}).get("code") for one in answer.json()["queues"]}
    assert told == {"full": "queue_full", "free": None}
    assert [m["payload"] for m in dequeue(http, free)] == [2]


def test_a_publish_through_an_exchange_can_be_repeated(http: httpx.Client, place: Place) -> None:
    queues = [place.queue("a"), place.queue("b")]
    for name in ("a", "b"):
        place.bind("amq.fanout", name)
    path, body = f"/exchanges/{place.vhost}/amq.fanout/publish", {"payload": 1}
    first = http.post(path, json=body, headers={"Idempotency-Key": "k1"})
    again = http.post(path, json=body, headers={"Idempotency-Key": "k1"})
    assert "Idempotency-Replayed" not in first.headers and again.headers["Idempotency-Replayed"] == "true"
    ids = [[one["message_id"] for one in answer.json()["queues"]] for answer in (first, again)]
    assert ids[0] == ids[1]
    for queue in queues:
        assert len(dequeue(http, queue, max_messages=9)) == 1
    assert error(http.post(path, json={"payload": 2}, headers={"Idempotency-Key": "k1"}))[:2] == (
        409,
        "idempotency_conflict",
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"routing_key":"k"}', "payload"),
        (b'{"payload":1,"routing_key":5}', "routing_key"),
        (b'{"payload":1,"routing_key":"a","routing_key":"b"}', "routing_key"),
        (b'{"payload":1,"key_of_routing":"a"}', "key_of_routing"),
        (b'[{"payload":1}]', None),
    ],
)
def test_a_wrong_message_is_refused(http: httpx.Client, place: Place, body: bytes, field: str | None) -> None:
    answer = http.post(f"/exchanges/{place.vhost}/amq.fanout/publish", content=body)
    assert error(answer) == (400, "invalid_input", field)


def test_a_routing_key_of_more_than_255_bytes_is_refused(http: httpx.Client, place: Place) -> None:
    path = f"/exchanges/{place.vhost}/amq.topic"
    for action in ("publish", "route"):
        body = {"routing_key": "é" * 200, **({"payload": 1} if action == "publish" else {})}
        assert error(http.post(f"{path}/{action}", json=body)) == (400, "invalid_input", "routing_key")


# --- the route tester


def test_the_tester_says_which_queues_and_why(http: httpx.Client, place: Place) -> None:
    for name in ("eu", "audit", "rest"):
        place.queue(name)
    place.exchange("orders", type="topic", alternate_exchange="unmatched")
    place.exchange("unmatched", type="fanout")
    place.exchange("copies", type="headers")
    place.bind("orders", "eu", "orders.eu.*")
    http.post(f"/bindings/{place.vhost}/e/orders/e/copies", json={"routing_key": "orders.#"})
    place.bind("copies", "audit", "", **{"x-match": "any"}, big=True)
    place.bind("unmatched", "rest")
    answer = place.route("orders", "orders.eu.new", big=True)
    assert (answer["routed"], sorted(answer["queues"])) == (True, ["audit", "eu"])
    whys = {route["queue_name"]: [hop["why"] for hop in route["hops"]] for route in answer["routes"]}
    assert whys == {
        "eu": ["the routing key 'orders.eu.new' matches the pattern 'orders.eu.*'"],
        "audit": [
            "the routing key 'orders.eu.new' matches the pattern 'orders.#'",
            "the attributes match any of the binding's arguments",
        ],
    }
    ends = [(hop["exchange"], hop["destination_type"], hop["destination"]) for hop in answer["routes"][-1]["hops"]]
    assert ends == [("orders", "exchange", "copies"), ("copies", "queue", "audit")]
    (other,) = place.route("orders", "invoices")["routes"]
    assert [hop["why"] for hop in other["hops"]] == [
        "no binding of 'orders' matches, and this is its alternate exchange",
        "a fanout exchange sends everything to everything bound to it",
    ]
    assert place.route("amq.default", "eu")["routes"][0]["hops"][0]["why"] == "the routing key is the name of the queue"
    nowhere = place.route("amq.direct", "k")
    assert nowhere == {
        "routed": False,
        "queues": [],
        "routes": [],
        "why_not": "exchange 'amq.direct' has no bindings",
    }
    assert place.route("amq.default", "k")["why_not"] == "there is no queue 'k'"
    place.bind("amq.direct", "eu", "other")
    assert "only binding of exchange 'amq.direct' does not match" in place.route("amq.direct", "k")["why_not"]
    assert http.get(f"/vhosts/{place.vhost}/queues/eu/stats").json()["totals"]["published"] == 0
    missing = http.post(f"/exchanges/{place.vhost}/none/route")
    assert error(missing)[:2] == (404, "exchange_not_found")


def test_what_the_tester_says_is_where_messages_go(http: httpx.Client, place: Place) -> None:
    for name in ("a", "b"):
        place.queue(name)
    place.bind("amq.topic", "a", "#.x")
    place.bind("amq.topic", "b", "*.x")
    for key in ("x", "q.x", "q.r.x", "y"):
        told = sorted(place.route("amq.topic", key)["queues"])
        assert queues_of(place.publish("amq.topic", key)) == told


# --- restarts, deletion, permission


def test_exchanges_and_bindings_survive_a_restart_unless_they_are_transient(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        place = Place(http)
        place.queue("q")
        place.exchange("kept", type="topic")
        place.exchange("gone", durable=False)
        place.bind("kept", "q", "a.*")
        place.bind("gone", "q", "k")
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        place.http = http
        assert queues_of(place.publish("kept", "a.b")) == ["q"]
        assert error(http.get(f"/exchanges/{place.vhost}/gone"))[:2] == (404, "exchange_not_found")
        assert [one["source"] for one in http.get(f"/bindings/{place.vhost}").json()["bindings"]] == ["kept"]


def test_exchanges_go_with_their_virtual_host(http: httpx.Client, place: Place) -> None:
    place.queue("q")
    place.exchange("x")
    place.bind("x", "q", "k")
    place.bind("amq.topic", "q", "k")
    assert http.delete(f"/vhosts/{place.vhost}").status_code == 204
    assert http.put(f"/vhosts/{place.vhost}").status_code == 201
    assert http.get(f"/bindings/{place.vhost}").json()["bindings"] == []
    assert all(one["built_in"] for one in http.get(f"/exchanges/{place.vhost}").json()["exchanges"])


@pytest.fixture
def shop(own_serving: Callable[..., Serving]) -> tuple[Serving, Callable[..., httpx.Client]]:
    """A server with the exchange `orders` and the queues `a` and `secret` bound to it, and a maker of accounts."""
    serving = own_serving()
    with serving.client() as http:
        for name in ("a", "secret"):
            http.put(f"/queues/{name}")
        http.put("/exchanges/%2F/orders", json={"type": "fanout"})
        for name in ("a", "secret"):
            http.post(f"/bindings/%2F/e/orders/q/{name}")
        http.put("/accounts/root", json={"password": "root", "roles": ["admin"]})

    def account(name: str, *permissions: dict[str, Any]) -> httpx.Client:
        with serving.client(auth=("root", "root")) as root:
            root.put(f"/accounts/{name}", json={"password": name, "permissions": list(permissions)})
        return serving.client(auth=(name, name))

    return serving, account


def test_publishing_needs_write_on_the_exchange_and_tells_of_visible_queues_alone(
    shop: tuple[Serving, Callable[..., httpx.Client]],
) -> None:
    _, account = shop
    path = "/exchanges/%2F/orders/publish"
    with account("writer", {"queue": "orders", "write": True}, {"queue": "a", "read": True}) as http:
        answer = http.post(path, json={"payload": 1}).json()
        assert (answer["routed"], answer["queue_count"], queues_of(answer)) == (True, 2, ["a"])
        refused = http.post("/exchanges/%2F/amq.default/publish", json={"payload": 1, "routing_key": "a"})
        assert error(refused)[:2] == (403, "forbidden")
        assert "write permission on exchange 'amq.default'" in refused.json()["error"]["message"]
    with account("reader", {"queue": "*", "read": True}) as http:
        assert error(http.post(path, json={"payload": 1}))[:2] == (403, "forbidden")
        assert sorted(http.post("/exchanges/%2F/orders/route").json()["queues"]) == ["a", "secret"]


def test_what_else_needs_which_permission(shop: tuple[Serving, Callable[..., httpx.Client]]) -> None:
    _, account = shop
    with account("half", {"queue": "orders", "read": True}, {"queue": "a", "write": True}) as http:
        assert http.post("/bindings/%2F/e/orders/q/a", json={"routing_key": "k"}).status_code == 201
        assert http.get("/bindings/%2F/e/orders/q/a").status_code == 200
        assert http.delete("/bindings/%2F/e/orders/q/a?routing_key=k").status_code == 204
        for answer in (
            http.post("/bindings/%2F/e/orders/q/secret"),
            http.post("/bindings/%2F/e/amq.topic/q/a"),
            http.get("/bindings/%2F/e/amq.topic/q/a"),
            http.delete("/bindings/%2F/e/orders/q/secret"),
            http.post("/bindings/%2F/e/orders/e/amq.topic"),
            http.put("/exchanges/%2F/mine"),
            http.delete("/exchanges/%2F/orders"),
            http.get("/exchanges/%2F/amq.topic"),
            http.post("/exchanges/%2F/amq.topic/route"),
        ):
            assert error(answer)[:2] == (403, "forbidden"), answer.request.url
        assert [one["exchange_name"] for one in http.get("/exchanges/%2F").json()["exchanges"]] == ["orders"]
        assert [one["destination"] for one in http.get("/bindings/%2F").json()["bindings"]] == ["a"]
    with account("none", {"queue": "x*", "read": True, "configure": True}) as http:
        assert http.get("/bindings/%2F").json()["bindings"] == []
        assert http.put("/exchanges/%2F/x1").status_code == 201
        for body in ({"alternate_exchange": "orders"}, {"arguments": {"alternate-exchange": "orders"}}):
            assert error(http.put("/exchanges/%2F/x2", json=body))[:2] == (403, "forbidden")
        for settings in ({"dead_letter_exchange": "orders"}, {"arguments": {"x-dead-letter-exchange": ""}}):
            assert error(http.put("/queues/x3", json=settings))[:2] == (403, "forbidden")
        http.put("/queues/x4")
        assert error(http.patch("/queues/x4", json={"dead_letter_exchange": "orders"}))[:2] == (403, "forbidden")


def test_dead_letters_go_only_where_one_may_write(shop: tuple[Serving, Callable[..., httpx.Client]]) -> None:
    serving, account = shop
    with account("bob", {"queue": "bob*", "read": True, "write": True, "configure": True}) as http:
        assert error(http.put("/queues/bob1", json={"dead_letter_queue": "secret"}))[:2] == (403, "forbidden")
        http.put("/queues/bob-dead")
        assert http.put("/queues/bob1", json={"dead_letter_queue": "bob-dead"}).status_code == 201
        assert error(http.patch("/queues/bob1", json={"dead_letter_queue": "secret"}))[:2] == (403, "forbidden")
        assert http.patch("/queues/bob1", json={"dead_letter_queue": None}).status_code == 200
        with serving.client(auth=("root", "root")) as root:
            root.put("/queues/bob2", json={"dead_letter_exchange": "", "dead_letter_routing_key": "bob-dead"})
        refused = http.patch("/queues/bob2", json={"dead_letter_routing_key": "secret"})
        assert error(refused)[:2] == (403, "forbidden")
        assert "amq.default" in refused.json()["error"]["message"]
        assert http.patch("/queues/bob2", json={"max_receive_count": 2}).status_code == 200
