"""The Python client against a real server, and through a connection that breaks at the worst moment."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from laneway.client import Client, ClientError, Message
from laneway.client.wire import attribute_from_wire, message_to_wire, time_to_wire

from .conftest import Server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"q-{request.node.name}"[:200]
    client.put_queue(name)
    return name


def refused(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    return error.value.code, error.value.status


# --- messages


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        ({"id": 1, "nested": [1, 2.5, None, True, "é"]}, "application/json"),
        (None, "application/json"),
        ("a JSON string", "application/json"),
        (b"\x00\xff any bytes", "application/octet-stream"),
        (b"", "application/octet-stream"),
    ],
)
def test_a_payload_comes_back_as_it_was_published(
    client: Client, queue: str, payload: object, content_type: str
) -> None:
    published = client.publish(queue, payload, priority=7)
    [message] = client.receive(queue)
    assert (message.payload, message.content_type) == (payload, content_type)
    assert (message.message_id, message.priority, message.receive_count) == (published["message_id"], 7, 1)
    client.ack(queue, message)
    assert client.stats(queue)["in_flight_count"] == 0


@pytest.mark.parametrize("content_type", ["text/plain", "text/csv; charset=utf-8"])
def test_text_comes_back_as_text(client: Client, queue: str, content_type: str) -> None:
    client.publish(queue, "grüße,1\n", content_type=content_type)
    [message] = client.receive(queue)
    assert (message.payload, message.content_type) == ("grüße,1\n", content_type)


def test_everything_a_message_carries_arrives(client: Client, queue: str) -> None:
    attributes = {"region": "eu", "size": 3, "ratio": 0.5, "urgent": True, "raw": b"\x00\x01"}
    client.publish(
        queue,
        1,
        attributes=attributes,
        correlation_id="c",
        group="g",
        key="k",
        tenant="t",
        dedup_id="d",
        ttl_seconds=60,
    )
    [message] = client.receive(queue, consumer_id="me", visibility_timeout=5)
    assert message.attributes == attributes
    assert {name: message.raw[name] for name in ("correlation_id", "group", "key", "tenant", "dedup_id")} == {
        "correlation_id": "c",
        "group": "g",
        "key": "k",
        "tenant": "t",
        "dedup_id": "d",
    }
    assert abs(message.enqueued_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_delayed_message_is_seen_by_peeking_alone(client: Client, queue: str) -> None:
    client.publish(queue, "later", delay_seconds=600)
    client.publish(queue, "much later", deliver_at=datetime.now(UTC) + timedelta(days=30))
    assert client.receive(queue) == []
    assert [message.payload for message in client.peek(queue, states=["delayed"])] == ["later", "much later"]
    assert client.stats(queue)["delayed_count"] == 2


def test_a_batch_answers_for_each_entry_in_order(client: Client, queue: str) -> None:
    results = client.publish_batch(
        queue, [{"payload": 1, "priority": 1}, {"payload": 2, "priority": 200}, {"payload": b"3"}]
    )
    assert [isinstance(result, dict) for result in results] == [True, False, True]
    assert isinstance(results[1], ClientError)
    assert (results[1].code, results[1].status) == ("invalid_input", 207)
    assert "priority" in (results[1].field or "")
    assert len(client.receive(queue, 10)) == 2


def test_settling_one_and_many(client: Client, queue: str) -> None:
    client.publish_batch(queue, [{"payload": n} for n in range(8)])
    messages = client.receive(queue, 8)
    client.ack(queue, messages[0])
    assert "visible_at" in client.release(queue, messages[1], delay_seconds=100)
    client.reject(queue, messages[2], reason="bad")
    assert "visible_until" in client.extend(queue, messages[3], 60)
    handle = messages[4].receipt_handle
    assert handle is not None
    for results, status in (
        (client.ack_batch(queue, [handle, messages[0]]), "acked"),
        (client.release_batch(queue, [messages[5]], backoff=True), "released"),
        (client.reject_batch(queue, [messages[6]]), "rejected"),
        (client.extend_batch(queue, [messages[7]], 0), "extended"),
    ):
        assert isinstance(results[0], dict) and results[0]["status"] == status
    assert isinstance(client.ack_batch(queue, [messages[0]])[0], ClientError)
    stats = client.stats(queue)
    assert (stats["in_flight_count"], stats["delayed_count"], stats["dlq_count"]) == (1, 2, 2)


def test_a_stale_receipt_is_refused_with_its_own_code(client: Client, queue: str) -> None:
    client.publish(queue, 1)
    [first] = client.receive(queue)
    client.extend(queue, first, 0)
    [second] = client.receive(queue)
    with pytest.raises(ClientError) as stale:
        client.ack(queue, first)
    assert refused(stale) == ("lease_stale", 409)
    client.ack(queue, second)


def test_a_peeked_message_has_no_lease_to_settle(client: Client, queue: str) -> None:
    client.publish(queue, 1)
    [message] = client.peek(queue)
    with pytest.raises(ValueError, match="peeked at"):
        client.ack(queue, message)


def test_receiving_waits_for_the_first_message(client: Client, server: Server, queue: str) -> None:
    received: list[Message] = []
    waiting = threading.Thread(target=lambda: received.extend(client.receive(queue, wait_seconds=20)))
    waiting.start()
    with Client(server.url) as other:
        while not other.stats(queue)["consumers_waiting"]:
            pass  # each round is a request; pytest's timeout bounds them
        other.publish(queue, "now")
    waiting.join(10)
    assert [message.payload for message in received] == ["now"]


def test_peeking_goes_through_all_pages(client: Client, queue: str) -> None:
    client.publish_batch(queue, [{"payload": n, "attributes": {"odd": n % 2 == 1}} for n in range(250)])
    assert [message.payload for message in client.peek(queue, limit=None)] == list(range(250))
    assert len(list(client.peek(queue, limit=120))) == 120
    assert len(list(client.peek(queue, attribute=("odd", "true"), limit=None))) == 125
    assert list(client.peek(queue, priority=9)) == []


# --- queues, dead letters


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a b", "%2F", "é", "?x=1", "#", "a" * 255])
@pytest.mark.parametrize("vhost", ["/", "other", "a/b", ".."])
def test_any_name_of_a_queue_survives_the_way_through_a_url(server: Server, name: str, vhost: str) -> None:
    with Client(server.url, vhost=vhost) as client:
        client.create_vhost(vhost)
        made = client.put_queue(name, max_priority=3)
        assert (made["queue_name"], made["vhost"], made["max_priority"]) == (name, vhost, 3)
        assert client.change_queue(name, max_messages=5)["max_messages"] == 5
        assert client.change_queue(name, max_messages=None)["max_messages"] is None
        assert name in [one["queue_name"] for one in client.queues()]
        client.delete_queue(name, if_empty=True)
        with pytest.raises(ClientError) as gone:
            client.queue(name)
        assert refused(gone) == ("queue_not_found", 404)


@pytest.mark.parametrize("vhost", ["/", "other", ".."])
def test_a_message_goes_through_an_exchange(server: Server, vhost: str) -> None:
    with Client(server.url, vhost=vhost) as client:
        client.create_vhost(vhost)
        client.put_queue("routed")
        made = client.put_exchange("a/b", type="headers", alternate_exchange=None)
        assert (made["exchange_name"], made["vhost"], made["type"]) == ("a/b", vhost, "headers")
        assert "a/b" in [one["exchange_name"] for one in client.exchanges()]
        client.bind("a/b", "routed", "k", arguments={"digest": b"\x00\xff"})
        assert [one["routing_key"] for one in client.bindings()] == ["k"]
        assert client.route("a/b", attributes={"digest": b"\x00\xff"})["queues"] == ["routed"]
        assert client.route("a/b")["routed"] is False
        sent = client.publish_to_exchange("a/b", "k", {"n": 1}, attributes={"digest": b"\x00\xff"}, priority=3)
        [message] = client.receive("routed")
        assert (message.message_id, message.payload, message.priority) == (sent["queues"][0]["message_id"], {"n": 1}, 3)
        assert (message.raw["exchange"], message.raw["routing_key"]) == ("a/b", "k")
        client.unbind("a/b", "routed", "k", arguments={"digest": b"\x00\xff"})
        client.delete_exchange("a/b", if_unused=True)
        with pytest.raises(ClientError) as gone:
            client.exchange("a/b")
        assert refused(gone) == ("exchange_not_found", 404)
        client.delete_queue("routed")


def test_attributes_of_other_protocols_come_nested() -> None:
    nested = {"list": [{"binary": "AP8="}, 1], "map": {"deep": {"binary": "AA=="}, "odd": {"binary": 5}}}
    assert attribute_from_wire(nested) == {
        "list": [b"\x00\xff", 1],
        "map": {"deep": b"\x00", "odd": {"binary": 5}},
    }


def test_listing_goes_through_all_pages(server: Server) -> None:
    with Client(server.url, vhost="many") as client:
        client.create_vhost("many")
        names = [f"p{n:03}" for n in range(230)]
        for name in names:
            client.put_queue(name)
        assert [one["queue_name"] for one in client.queues("p")] == names
        assert [one["queue_name"] for one in client.queues("p", limit=150)] == names[:150]
        assert [one["queue_name"] for one in client.queues("p1", limit=3)] == ["p100", "p101", "p102"]


def test_purging_says_how_many(client: Client, queue: str) -> None:
    client.publish_batch(queue, [{"payload": n} for n in range(3)])
    assert client.purge(queue) == 3
    assert client.receive(queue) == []


def test_redriving_and_deleting_dead_letters(client: Client, queue: str) -> None:
    client.publish_batch(queue, [{"payload": n, "attributes": {"n": n}} for n in range(4)])
    client.reject_batch(queue, client.receive(queue, 4))
    dead = list(client.peek(queue, states=["dead"]))
    assert client.delete_dead_letters(queue, message_ids=[dead[0].message_id]) == 1
    task = client.redrive(queue, attribute=("n", "2"))
    while task["state"] == "running":
        task = client.task(task["task_id"])
    assert (task["state"], task["moved"]) == ("completed", 1)
    assert [message.payload for message in client.receive(queue)] == [2]
    assert task["task_id"] in [one["task_id"] for one in client.tasks(queue)]
    with pytest.raises(ClientError) as narrow:
        client.delete_dead_letters(queue)
    assert refused(narrow)[1] == 400
    assert client.delete_dead_letters(queue, all=True) == 2


def test_the_server_says_who_it_is_and_who_one_is(client: Client) -> None:
    assert client.whoami()["name"] == "guest"
    assert client.ready()["state"] == "ready"
    assert client.info()["name"].lower() == "laneway"


# --- what goes wrong on the way


class Cutter:
    """Stands between a client and a server and breaks the first connections after the request, before the answer."""

    def __init__(self, url: str, *, cuts: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._cuts = cuts
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                inward, _ = self._listening.accept()
            except OSError:
                return
            with inward, socket.create_connection(self._target) as outward:
                self._relay(inward, outward)

    def _relay(self, inward: socket.socket, outward: socket.socket) -> None:
        self.connections += 1
        while True:
            for ready in select.select([inward, outward], [], [])[0]:
                piece = ready.recv(1 << 20)
                if not piece:
                    return
                if ready is inward:
                    outward.sendall(piece)
                elif self._cuts:  # the server has answered, so it has done what it was asked
                    self._cuts -= 1
                    return
                else:
                    inward.sendall(piece)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    cutter = Cutter(server.url, cuts=1)
    yield cutter
    cutter.close()


def test_a_publish_whose_answer_was_lost_is_repeated_and_adds_one_message(
    client: Client, queue: str, cutter: Cutter
) -> None:
    with Client(cutter.url) as through:
        published = through.publish(queue, "once")
    assert cutter.connections == 2
    assert [message.message_id for message in client.receive(queue, 10)] == [published["message_id"]]


def test_reading_is_repeated(client: Client, queue: str, cutter: Cutter) -> None:
    with Client(cutter.url) as through:
        assert through.queue(queue)["queue_name"] == queue
    assert cutter.connections == 2


def test_receiving_is_not_repeated(client: Client, queue: str, cutter: Cutter) -> None:
    client.publish(queue, 1)
    with Client(cutter.url) as through, pytest.raises(ClientError) as broken:
        through.receive(queue)
    assert refused(broken) == ("unreachable", 0)
    assert "broke before the answer came" in broken.value.message
    assert cutter.connections == 1


def test_a_server_that_never_answers_is_given_up_in_time(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_seconds=0.2, attempts=1) as client, pytest.raises(ClientError) as late:
            client.whoami()
    assert refused(late) == ("timed_out", 0)


def test_a_server_that_is_no_laneway_is_recognised(server: Server) -> None:
    def answer(listening: socket.socket) -> None:
        with listening.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        with Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client, pytest.raises(ClientError) as foreign:
            client.whoami()
    assert refused(foreign) == ("not_laneway", 404)


def test_wrong_credentials_are_refused(server: Server) -> None:
    for credentials in ({"key": "lw_wrong"}, {"user": "guest", "password": "wrong"}):
        with Client(server.url, **credentials) as client, pytest.raises(ClientError) as wrong:
            client.whoami()
        assert refused(wrong) == ("unauthenticated", 401)
    with Client(server.url, user="guest", password="guest") as client:
        assert client.whoami()["roles"] == ["admin"]
    with pytest.raises(ValueError, match="not both"):
        Client(server.url, key="k", user="u")


# --- values on the wire


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="names no time zone"):
        time_to_wire(datetime(2030, 1, 1))
    assert time_to_wire(datetime(2030, 1, 1, 12, tzinfo=UTC)) == "2030-01-01T12:00:00.000Z"


def test_a_payload_that_is_no_bytes_needs_a_content_type_it_can_have() -> None:
    with pytest.raises(ValueError, match="bytes or text"):
        message_to_wire({"a": 1}, content_type="text/plain")
    assert message_to_wire(b'{"a":1}', content_type="application/json") == {
        "payload_base64": "eyJhIjoxfQ==",
        "content_type": "application/json",
    }


def test_a_batch_is_staged_and_committed_once_even_if_every_answer_is_lost(
    client: Client, queue: str, server: Server
) -> None:
    for_the_part, for_the_commit = Cutter(server.url, cuts=1), Cutter(server.url, cuts=1)
    try:
        with Client(for_the_part.url) as broken:
            assert broken.stage_part(queue, "run", "0", [{"queue": queue, "body": b"1"}])["messages"] == 1
        with Client(for_the_commit.url) as broken:
            committed = broken.commit_batch(queue, 4, "run", ["0"])
    finally:
        for_the_part.close()
        for_the_commit.close()
    assert (for_the_part.connections, for_the_commit.connections) == (2, 2)
    assert (committed["published"], committed["already"]) == (1, True)
    assert [message.payload for message in client.receive(queue, 5)] == [b"1"]
    assert client.producer(queue)["last_batch"] == 4
    assert queue in [producer["producer"] for producer in client.producers()]
    client.stage_part(queue, "run", "0", [{"queue": queue, "body": b"2"}])
    client.give_up_stage(queue, "run")
    with pytest.raises(ClientError) as error:
        client.commit_batch(queue, 5, "run", ["0"])
    assert refused(error) == ("parts_missing", 409)
    client.delete_producer(queue)
    with pytest.raises(ClientError) as error:
        client.producer(queue)
    assert refused(error) == ("producer_not_found", 404)
