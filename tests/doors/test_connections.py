"""Who is connected: listed and ended over HTTP and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from tests.amqp.wire import Wire as AmqpWire
from tests.amqp.wire import publish
from tests.attacks.whole_node import WholeNode, may
from tests.doors.test_https import laneway
from tests.in_thread import wait_for
from tests.rest.serving import request


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("connections")) as node:
        node.new_queue("work")
        node.account("ann", "pw", may("*", "read", "write", "configure"))
        node.account("ben", "pw", may("*", "read", "write"))
        yield node


@pytest.fixture
def root(node: WholeNode) -> Iterator[httpx.Client]:
    with node.http() as root:
        yield root


def listed(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = http.get("/connections", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["connections"])


def amqp_id(root: httpx.Client, account: str = "ann") -> str:
    """Of the only one: those of tests before have ended, and may not have gone yet."""
    wait_for(lambda: len(listed(root, protocol="amqp", account=account)) == 1, f"{account} has one connection")
    return str(listed(root, protocol="amqp", account=account)[0]["connection_id"])


def logged_in(node: WholeNode, name: str = "ann") -> AmqpWire:
    return node.amqp(name, "pw")


def consume(wire: AmqpWire, queue: str = "work", tag: str = "t", **options: Any) -> None:
    assert wire.ask(1, "basic.consume", queue=queue, tag=tag, **options).name == "basic.consume-ok"


def gone(root: httpx.Client, connection_id: str) -> None:
    wait_for(lambda: root.get(f"/connections/{connection_id}").status_code == 404, "the connection is gone")


# --- listed


def test_connection_of_a_real_client_says_who_it_is(node: WholeNode, root: httpx.Client) -> None:
    where = pika.ConnectionParameters(
        "127.0.0.1",
        node.address("amqp")[1],
        credentials=pika.PlainCredentials("ann", "pw"),
        client_properties={"connection_name": "billing"},
        heartbeat=17,
    )
    connection = pika.BlockingConnection(where)
    try:
        channel = connection.channel()
        channel.queue_declare("pika")
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=5)
        for _ in range(7):
            channel.basic_publish("", "pika", b"x")
        channel.basic_consume("pika", lambda *_: None, consumer_tag="tag")
        connection.process_data_events(0.2)
        one = root.get(f"/connections/{amqp_id(root)}").json()
        assert listed(root, protocol="amqp", account="ann") == [one]
        assert one["client_properties"]["connection_name"] == "billing"
        assert one["client_properties"]["product"].startswith("Pika")
        assert (one["account"], one["vhost"], one["state"], one["tls"]) == ("ann", "/", "running", None)
        assert one["address"].startswith("127.0.0.1:") and one["heartbeat_seconds"] == 17
        assert (one["channel_count"], one["consumer_count"], one["unacked_count"]) == (1, 1, 5)
        path = f"/connections/{one['connection_id']}"
        assert root.get(path).json() == one
        [shown] = root.get(f"{path}/channels").json()["channels"]
        assert shown == {
            "channel": 1, "state": "open", "mode": "confirm", "consumer_count": 1, "unacked_count": 5, "prefetch": 5,
            "shared_prefetch": 0,
        }  # fmt: skip
        [consumer] = root.get(f"{path}/consumers").json()["consumers"]
        assert (consumer["consumer_tag"], consumer["queue_name"], consumer["channel"]) == ("tag", "pika", 1)
        assert (consumer["prefetch"], consumer["held_count"], consumer["is_active"]) == (5, 5, True)
        assert root.get("/queues/pika/consumers").json()["consumers"] == [consumer]
    finally:
        connection.close()
    gone(root, one["connection_id"])


def test_http_connections_are_counted_and_those_that_wait_are_told_from_others(
    node: WholeNode, root: httpx.Client
) -> None:
    before = root.get("/connections").json()["counts"]["http"]
    with node.http_wire() as idle, node.http_wire() as waiting:
        basic = "Authorization: Basic YW5uOnB3\r\n"  # ann:pw
        assert idle.ask("GET", "/healthz").status == 200
        waiting.send(request("POST", "/queues/work/dequeue", b'{"wait_seconds": 20}', basic))
        wait_for(lambda: listed(root, account="ann") != [], "ann waits")
        assert root.get("/connections").json()["counts"]["http"] == before + 2
        [one] = listed(root, account="ann")
        assert (one["protocol"], one["state"], one["request_count"], one["waiting_count"]) == ("http", "waiting", 1, 1)
        assert root.delete(f"/connections/{one['connection_id']}").status_code == 204
        assert waiting.read().json() == {"messages": []}
        assert waiting.read_to_the_end() == b""
        assert idle.ask("GET", "/healthz").status == 200


def test_connection_that_has_not_logged_in_is_nobodys(node: WholeNode, root: httpx.Client) -> None:
    with node.amqp_wire() as wire:
        wait_for(lambda: [one["state"] for one in listed(root, protocol="amqp")] == ["starting"], "it is listed")
        [one] = listed(root, protocol="amqp")
        assert one["account"] is None
        with node.http("ann", "pw") as ann:
            assert listed(ann, protocol="amqp") == []
        assert root.delete(f"/connections/{one['connection_id']}").status_code == 204
        assert wire.read_until_closed() == b""


def test_lists_come_in_pages(node: WholeNode, root: httpx.Client) -> None:
    wires = [logged_in(node) for _ in range(5)]
    try:
        for tag in range(5):
            consume(wires[0], tag=f"t{tag}")
        for path, name in (
            ("/connections?account=ann", "connections"),
            (f"/connections/{listed(root, protocol='amqp')[0]['connection_id']}/consumers", "consumers"),
            ("/queues/work/consumers", "consumers"),
        ):
            whole = root.get(path).json()
            assert len(whole[name]) == 5 and whole["next_cursor"] is None
            found, cursor = [], None
            for size in (2, 2, 1):
                page = root.get(path, params={"limit": 2, **({"cursor": cursor} if cursor else {})} | dict(
                    httpx.URL(path).params)).json()  # fmt: skip
                assert len(page[name]) == size
                found += page[name]
                cursor = page["next_cursor"]
            assert cursor is None
            assert [one.get("consumer", one["connection_id"]) for one in found] == [
                one.get("consumer", one["connection_id"]) for one in whole[name]
            ]
        assert root.get("/connections", params={"limit": 1001}).status_code == 400
        assert root.get("/connections", params={"cursor": "no"}).status_code == 400
    finally:
        for wire in wires:
            wire.close()


def test_what_clients_say_of_themselves_is_bounded(node: WholeNode, root: httpx.Client) -> None:
    where = pika.ConnectionParameters(
        "127.0.0.1",
        node.address("amqp")[1],
        credentials=pika.PlainCredentials("ann", "pw"),
        client_properties={f"p{n}": "x" * 230 for n in range(30)},
    )
    connection = pika.BlockingConnection(where)
    try:
        one = root.get(f"/connections/{amqp_id(root)}").json()
        shown = one["client_properties"]
        assert len(shown) <= 16 and max(len(str(value)) for value in shown.values()) <= 200
    finally:
        connection.close()
    gone(root, one["connection_id"])


# --- who may see and end what


def test_everybody_sees_and_ends_what_is_their_own_and_nothing_else(node: WholeNode, root: httpx.Client) -> None:
    with logged_in(node) as anns, logged_in(node, "ben") as bens, node.http("ben", "pw") as ben:
        consume(anns)
        consume(bens)
        anns_id, bens_id = amqp_id(root), amqp_id(root, "ben")
        answer = ben.get("/connections", params={"protocol": "amqp"}).json()
        assert [one["connection_id"] for one in answer["connections"]] == [bens_id] and "counts" not in answer
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/channels"),
            ("DELETE", "/channels/1"),
            ("GET", "/consumers"),
            ("DELETE", "/consumers/2"),
        ):
            refused = ben.request(method, f"/connections/{anns_id}{path}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "connection_not_found")
        assert ben.get("/connections", params={"account": "ann"}).status_code == 403
        consumers = ben.get("/queues/work/consumers").json()["consumers"]
        assert [one.get("connection_id") for one in consumers] == [None, bens_id]
        assert "address" not in consumers[0] and "account" not in consumers[0]
        assert ben.delete(f"/connections/{bens_id}").status_code == 204
        assert bens.expect("connection.close").fields["code"] == 320
        assert anns.ask(1, "basic.cancel", tag="t").name == "basic.cancel-ok"
    gone(root, anns_id)


def test_consumers_of_a_queue_are_for_those_who_may_see_it(node: WholeNode) -> None:
    node.account("eve", "pw")
    with node.http("eve", "pw") as eve:
        assert eve.get("/queues/work/consumers").status_code == 403
        assert listed(eve, protocol="amqp") == []


# --- ended


def test_closed_connection_is_told_by_whom_and_why(node: WholeNode, root: httpx.Client) -> None:
    with logged_in(node) as wire:
        connection_id = amqp_id(root)
        path = f"/connections/{connection_id}"
        assert root.delete(path, params={"reason": "two\nlines"}).status_code == 400
        assert root.delete(path, params={"reason": "we deploy"}).status_code == 204
        close = wire.expect("connection.close")
    assert (close.fields["code"], close.fields["text"]) == (320, "CONNECTION_FORCED - closed by 'root': we deploy")
    gone(root, connection_id)
    assert root.delete(path).status_code == 404


def test_closed_channel_gives_back_what_it_held(node: WholeNode, root: httpx.Client) -> None:
    node.new_queue("held")
    with logged_in(node) as wire:
        wire.send(publish(1, "held", b"x"))
        consume(wire, "held")
        assert [wire.read().name for _ in range(2)] == ["basic.deliver", "header"]
        wire.read()
        path = f"/connections/{amqp_id(root)}/channels"
        assert root.delete(f"{path}/1").status_code == 204
        close = wire.expect("channel.close")
        assert close.fields["code"] == 406 and "closed by 'root'" in close.fields["text"]
        assert len(root.post("/queues/held/dequeue", json={"wait_seconds": 5}).json()["messages"]) == 1
        assert root.delete(f"{path}/1").status_code == 404  # it is closing already
        assert root.delete(f"{path}/9").status_code == 404
        assert root.delete(f"{path}/one").status_code == 400


def test_cancelled_consumer_is_told_and_may_settle_what_it_holds(node: WholeNode, root: httpx.Client) -> None:
    node.new_queue("cancelled")
    where = pika.ConnectionParameters(
        "127.0.0.1", node.address("amqp")[1], credentials=pika.PlainCredentials("ann", "pw")
    )
    connection = pika.BlockingConnection(where)
    try:
        channel = connection.channel()
        channel.basic_publish("", "cancelled", b"x")
        got: list[Any] = []
        channel.basic_consume("cancelled", lambda _ch, method, *_: got.append(method), consumer_tag="tag")
        while not got:
            connection.process_data_events(0.1)
        ended: list[Any] = []
        channel.add_on_cancel_callback(ended.append)
        path = f"/connections/{amqp_id(root)}/consumers"
        [consumer] = root.get(path).json()["consumers"]
        assert root.delete(f"{path}/{consumer['consumer']}").status_code == 204
        while not ended:
            connection.process_data_events(0.1)
        channel.basic_ack(got[0].delivery_tag)
        channel.basic_publish("", "cancelled", b"for others")
        assert root.get(path).json()["consumers"] == []
        wait_for(
            lambda: root.get("/queues/cancelled/stats").json()["approximate_message_count"] == 1, "acked, and published"
        )
        assert root.delete(f"{path}/{consumer['consumer']}").status_code == 404
    finally:
        connection.close()


def test_client_that_knows_no_cancel_loses_its_channel(node: WholeNode, root: httpx.Client) -> None:
    with node.amqp("ann", "pw", publisher_confirms=True) as wire:
        consume(wire)
        path = f"/connections/{amqp_id(root)}/consumers"
        [consumer] = root.get(path).json()["consumers"]
        assert root.delete(f"{path}/{consumer['consumer']}").status_code == 204
        assert wire.expect("channel.close").fields["code"] == 406


def test_single_active_consumer_is_told_from_those_who_wait(node: WholeNode, root: httpx.Client) -> None:
    assert root.put("/queues/single", json={"single_active_consumer": True}).status_code == 201
    with logged_in(node) as first, logged_in(node, "ben") as second:
        consume(first, "single")
        root.post("/queues/single/messages", json={"payload": 1})
        assert first.read().name == "basic.deliver"
        consume(second, "single")
        consumers = root.get("/queues/single/consumers").json()["consumers"]
        assert [(one["account"], one["is_active"]) for one in consumers] == [("ann", True), ("ben", False)]


def test_connection_that_closes_itself_is_answered_first(node: WholeNode, root: httpx.Client) -> None:
    with node.http_wire() as wire:
        basic = "Authorization: Basic YW5uOnB3\r\n"  # ann:pw
        [own] = wire.ask("GET", "/connections?protocol=http", headers=basic).json()["connections"]
        assert (own["account"], own["state"], own["request_count"]) == ("ann", "answering", 1)
        wire.send(request("DELETE", f"/connections/{own['connection_id']}", headers=basic))
        assert wire.read().status == 204
        assert wire.read_to_the_end() == b""


# --- the command line


def test_command_line(node: WholeNode, root: httpx.Client) -> None:
    who = {"LANEWAY_URL": node.url, "LANEWAY_USER": "root", "LANEWAY_PASSWORD": "secret"}
    with logged_in(node) as wire:
        consume(wire)
        connection_id = amqp_id(root)
        said = laneway("connections", "--protocol", "amqp", **who).stdout
        assert connection_id in said and "ann" in said
        assert json.loads(laneway("connections", "--account", "ann", "--json", **who).stdout)["channel_count"] == 1
        said = laneway("connection", "show", connection_id, **who).stdout
        assert connection_id in said and "work" in said and "running" in said
        assert len(json.loads(laneway("connection", "show", connection_id, "--json", **who).stdout)["consumers"]) == 1
        assert connection_id in laneway("consumers", "work", **who).stdout
        said = laneway("connection", "close", connection_id, "--reason", "enough", **who).stdout
        assert f"closed {connection_id}" in said
        assert wire.expect("connection.close").fields["text"].endswith("closed by 'root': enough")
    gone(root, connection_id)
    assert "`laneway connections` shows" in laneway("connection", "close", connection_id, code=1, **who).stderr
    assert "there are none" in laneway("consumers", "work", **who).stderr
