"""One message or one request keeps everybody else waiting for a bounded time: what is more goes in slices, or is
refused before it is begun. Work is told by how long the loop computed in one turn, which
other programs on the machine have no part in; the bounds are generous, what was unbounded took seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
from botocore.exceptions import ClientError

from laneway.broker import local, parts
from laneway.broker.queues import Queues
from laneway.broker.topology import TopologyView
from laneway.broker.values import QueueInfo
from laneway.config import Config
from laneway.core import purging
from laneway.frontends.rest import bindings
from laneway.frontends.sqs import queues as sqs_queues
from tests.amqp.wire import Wire, method, publish
from tests.attacks.whole_node import WholeNode
from tests.in_thread import wait_for

MOST_MS = 1_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("costs")) as node:
        yield node


@contextmanager
def no_long_turn(node: WholeNode) -> Iterator[None]:
    turns = node.node.turns
    time.sleep(0.05)  # what came before it is counted before it
    turns.longest_busy_ms = 0
    yield
    stamped = node.call(lambda: node.node.turns.slow_count)
    assert stamped >= 0 and turns.longest_busy_ms < MOST_MS, turns


def _settled(wire: Wire) -> None:
    assert wire.ask(1, "basic.qos", count=0).name == "basic.qos-ok"


def _exchange(wire: Wire, name: str, kind: str, queues: int, keys: list[str] | None = None) -> list[str]:
    """An exchange with so many queues of its own, each bound with all of these keys."""
    assert wire.ask(1, "exchange.declare", exchange=name, type=kind).name == "exchange.declare-ok"
    names = [f"{name}-{i}" for i in range(queues)]
    for queue in names:
        wire.send(method(1, "queue.declare", queue=queue, nowait=True))
        for key in keys or [""]:
            wire.send(method(1, "queue.bind", queue=queue, exchange=name, key=key, nowait=True))
    _settled(wire)
    return names


# --- matching


def test_bindings_of_many_wildcards_cost_little(node: WholeNode) -> None:
    with node.amqp("root", "secret") as wire:
        patterns = [".".join(words) for words in product("*#", repeat=12)]
        (queue,) = _exchange(wire, "wild", "topic", 1, patterns)
        wire.ask(1, "confirm.select")
        with no_long_turn(node):
            for i in range(50):
                wire.send(publish(1, f"{i}." + ".".join("a" * 11), b"x", "wild"))
            while wire.expect("basic.ack").fields["delivery"] < 50:
                pass
        assert wire.ask(1, "queue.declare", queue=queue, passive=True).fields["messages"] == 50


def test_message_whose_way_is_too_long_is_refused_and_others_are_not(node: WholeNode) -> None:
    with node.amqp("root", "secret") as wire, node.http() as root:
        patterns = [".".join(words) for words in product(["#.a", "*.a", "a.*"], repeat=7)]
        (queue,) = _exchange(wire, "maze", "topic", 1, patterns)
        wire.ask(1, "confirm.select")
        key = ".".join("a" * 100)
        with no_long_turn(node):
            wire.send(publish(1, key, b"x", "maze"))
            close = wire.expect("channel.close")
            assert close.fields["code"] == 406 and "more than 20000 steps" in close.fields["text"]
            answer = root.post("/exchanges/%2F/maze/publish", json={"payload": 1, "routing_key": key})
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "route_too_long", answer.text
            assert root.post("/exchanges/%2F/maze/route", json={"routing_key": key}).status_code == 400
        wire.send(method(1, "channel.close-ok") + method(1, "channel.open"))
        wire.expect("channel.open-ok")
        assert wire.ask(1, "queue.declare", queue=queue, passive=True).fields["messages"] == 0


def test_dead_letter_whose_way_is_too_long_stays_where_it_died(node: WholeNode) -> None:
    with node.amqp("root", "secret") as wire, node.http() as root:
        patterns = [".".join(words) for words in product(["#.a", "*.a", "a.*"], repeat=7)]
        _exchange(wire, "dead-maze", "topic", 1, patterns)
        arguments = {"x-dead-letter-exchange": "dead-maze", "x-dead-letter-routing-key": ".".join("a" * 100)}
        wire.ask(1, "queue.declare", queue="lost-in-it", arguments=arguments)
        with no_long_turn(node):
            for _ in range(200):
                wire.send(publish(1, "lost-in-it", b"x", expiration="1"))
            _settled(wire)
            wait_for(
                lambda: root.get("/queues/lost-in-it/stats").json()["dlq_count"] == 200, "all are dead where they were"
            )


def test_too_many_copies_by_header_are_refused(node: WholeNode) -> None:
    with node.amqp("root", "secret") as wire:
        wire.ask(1, "queue.declare", queue="cc")
        wire.send(publish(1, "cc", b"x", headers={"CC": [f"k{i}" for i in range(101)]}))
        assert "101 routing keys, 100 are allowed" in wire.expect("channel.close").fields["text"]


# --- fan-out


def test_publishes_to_many_queues_go_in_parts_in_order(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_COST", 500)
    monkeypatch.setattr(parts, "_FEW", 20)
    cut = 0
    whole = parts.parts

    def counted(request: parts.Publish) -> Iterator[object]:
        nonlocal cut
        for part in whole(request):
            cut += 1
            yield part

    monkeypatch.setattr(local, "parts", counted)
    with node.amqp("root", "secret", channels=2) as wire:
        queues = _exchange(wire, "fan", "fanout", 100)
        wire.ask(1, "confirm.select")
        wire.send(b"".join(publish(1, "", b"%d" % i, "fan") for i in range(20)))
        wire.send(publish(2, queues[-1], b"last"))  # on the same connection: it must not overtake
        while wire.expect("basic.ack").fields["delivery"] < 20:
            pass
        for queue in (queues[0], queues[-1]):
            bodies = []
            while wire.ask(2, "basic.get", queue=queue, no_ack=True).name == "basic.get-ok":
                wire.read()
                bodies.append(wire.read().payload)
            expected = [b"%d" % i for i in range(20)] + ([b"last"] if queue == queues[-1] else [])
            assert bodies == expected
    assert cut >= 5


def test_http_publish_to_many_queues_is_answered_for_all_of_them(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_COST", 200)
    monkeypatch.setattr(parts, "_FEW", 20)
    with node.amqp("root", "secret") as wire, node.http() as root:
        queues = _exchange(wire, "wide", "fanout", 60)
        for headers in ({}, {"Idempotency-Key": "once"}, {"Idempotency-Key": "once"}):
            answer = root.post("/exchanges/%2F/wide/publish", json={"payload": 1}, headers=headers)
            assert answer.status_code in (200, 201), answer.text
        assert wire.ask(1, "queue.declare", queue=queues[-1], passive=True).fields["messages"] == 2


def test_transaction_that_reaches_too_many_queues_is_refused_as_a_whole(node: WholeNode) -> None:
    with node.amqp("root", "secret", channels=2) as wire:
        queues = _exchange(wire, "tx", "fanout", 60)
        wire.ask(1, "tx.select")
        for _ in range(10):
            wire.send(publish(1, "", b"x", "tx") * 400)
        with no_long_turn(node):
            answer = wire.ask(1, "tx.commit")
        assert answer.name == "channel.close" and "publish fewer" in answer.fields["text"], str(answer)
        assert wire.ask(2, "queue.declare", queue=queues[0], passive=True).fields["messages"] == 0


# --- many of one kind


def test_consumers_of_one_queue_cost_the_same_however_many_there_are(node: WholeNode) -> None:
    with node.amqp("root", "secret") as wire:
        wire.ask(1, "queue.declare", queue="watched")
        with no_long_turn(node):
            for first in range(0, 6_000, 500):
                some = range(first, first + 500)
                wire.send(b"".join(method(1, "basic.consume", queue="watched", tag=f"t{i}", nowait=True) for i in some))
            _settled(wire)


def test_many_methods_of_one_read_leave_others_their_turns(node: WholeNode) -> None:
    """Each declaration is small, and 1,500 of them come at once."""
    with node.amqp("root", "secret") as wire, node.http() as root:
        wire.send(b"".join(method(1, "queue.declare", queue=f"many-{i}", nowait=True) for i in range(1_500)))
        with no_long_turn(node):
            assert root.get("/healthz").status_code == 200
            _settled(wire)


# --- what goes in slices: each turn looks at few, and all are there in the end


def test_virtual_host_of_many_queues_goes_in_slices(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "SLICE", 200)
    slices = 0
    whole = Queues.delete_all

    def counted(self: Queues, numbers: Sequence[int]) -> Iterator[None]:
        nonlocal slices
        for _ in whole(self, numbers):
            slices += 1
            yield

    monkeypatch.setattr(Queues, "delete_all", counted)
    with node.http() as root:
        root.put("/vhosts/many").raise_for_status()
        with node.amqp("root", "secret", vhost="many") as wire:
            queues = _exchange(wire, "of-it", "topic", 35)
            wire.send(b"".join(publish(1, queue, b"x") for queue in queues))
            _settled(wire)
            assert root.delete("/vhosts/many").status_code == 204
            assert wire.expect("connection.close").fields["code"] == 320
        assert slices == 3
        assert root.get("/vhosts/many/queues").status_code == 404
        root.put("/vhosts/many").raise_for_status()
        assert root.get("/vhosts/many/queues").json()["queues"] == []
        assert root.get("/bindings/many").json()["bindings"] == []


def test_exclusive_queues_of_a_connection_that_ends_go_in_slices(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "SLICE", 200)
    with node.http() as root:
        with node.amqp("root", "secret") as wire:
            for i in range(35):
                assert wire.ask(1, "queue.declare", queue=f"own-{i}", exclusive=True).name == "queue.declare-ok"
            assert len(root.get("/queues", params={"prefix": "own-"}).json()["queues"]) == 35
        wait_for(lambda: root.get("/queues", params={"prefix": "own-"}).json()["queues"] == [], "they are gone")


def test_listings_over_sqs_look_at_few_queues_in_one_turn(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqs_queues, "_LOOKED_AT", 7)
    looked_at: list[int] = []
    whole = TopologyView.queues

    def counted(self: TopologyView, **which: Any) -> list[QueueInfo]:
        found = whole(self, **which)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(TopologyView, "queues", counted)
    sqs = node.sqs(node.key("root", "aws"))
    dead = sqs.create_queue(QueueName="listed-dead")["QueueUrl"]
    arn = "arn:aws:sqs:us-east-1:000000000000:listed-dead"
    policy = {"RedrivePolicy": f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 3}}'}
    for i in range(20):
        sqs.create_queue(QueueName=f"listed-{i:02d}", Attributes=policy if i % 5 == 0 else {})
    names = [url.rpartition("/")[2] for url in sqs.list_queues(QueueNamePrefix="listed-")["QueueUrls"]]
    assert names == [*(f"listed-{i:02d}" for i in range(20)), "listed-dead"]
    paged: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = sqs.list_queues(QueueNamePrefix="listed-", MaxResults=6, **token)
        paged += [url.rpartition("/")[2] for url in page["QueueUrls"]]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert paged == names
    sources = sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    assert [url.rpartition("/")[2] for url in sources] == ["listed-00", "listed-05", "listed-10", "listed-15"]
    assert sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    sqs.delete_queue(QueueUrl=dead)
    assert looked_at and max(looked_at) <= 7
    with node.http() as root:
        assert root.get("/queues/listed-05").json()["dead_letter_queue"] is None


def test_listing_of_bindings_looks_at_few_of_them_in_one_turn(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_SLICE", 7)
    with node.amqp("root", "secret") as wire, node.http() as root:
        (queue,) = _exchange(wire, "paged", "topic", 1, [f"k{i:02d}" for i in range(40)])
        path = f"/bindings/%2F/e/paged/q/{queue}"
        keys: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = root.get(path, params={"limit": 6, **cursor}).json()
            keys += [binding["routing_key"] for binding in page["bindings"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert keys == [f"k{i:02d}" for i in range(40)]


# --- sizes


def test_large_body_of_a_rare_request_is_refused_before_it_is_looked_at(node: WholeNode) -> None:
    """Thirty MiB of arguments took ten seconds."""
    arguments = b'{"arguments": {"a": [' + b"1," * 1_000_000 + b"1]}}"
    with node.http() as root, no_long_turn(node):
        for method_, path in (("PUT", "/queues/large"), ("PUT", "/exchanges/%2F/large"), ("PUT", "/accounts/large")):
            answer = root.request(method_, path, content=arguments, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large", answer.text
    sqs = node.sqs(node.key("root", "aws"))
    with no_long_turn(node), pytest.raises(ClientError) as refused:
        sqs.create_queue(QueueName="large", Attributes={"Policy": '{"a": "' + "x" * 4_000_000 + '"}'})
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_batch_of_very_many_messages_is_refused_before_they_are_made(node: WholeNode) -> None:
    body = b"[" + b'{"payload":1},' * 500_000 + b'{"payload":1}]'
    with node.http() as root, no_long_turn(node):
        node.new_queue("batches")
        answer = root.post("/queues/batches/messages", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and "a batch has 1 to 1000 entries" in answer.text


def test_largest_plain_body_that_is_taken_is_decoded_in_a_short_turn(node: WholeNode) -> None:
    size = Config(data=node.node.config.data).max_body_bytes
    payload = b"[" + b"1," * (size // 2_100) + b"1]"
    body = b"[" + b",".join([b'{"payload":' + payload + b"}"] * 1_000) + b"]"
    assert size * 0.9 < len(body) <= size
    with node.http() as root:
        node.new_queue("heavy")
        with no_long_turn(node):
            answer = root.post("/queues/heavy/messages", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 201, answer.text
        answer = root.post(
            "/queues/heavy/messages", content=body + b" " * size, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
        assert root.delete("/queues/heavy").status_code == 204


def test_deep_queues_are_purged_and_deleted_in_slices_over_each_protocol(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "SLICE", 1_000)
    sqs = node.sqs(node.key("root", "aws"))
    with node.http() as root, node.amqp("root", "secret") as wire:
        for purge in ("http", "amqp", "sqs"):
            node.new_queue("deep")
            for _ in range(4):
                batch = [{"payload": n, "group": str(n % 9)} for n in range(1_000)]
                root.post("/queues/deep/messages", json=batch).raise_for_status()
            if purge == "http":
                assert root.post("/queues/deep/purge").json() == {"purged": 4_000}
                assert root.delete("/queues/deep").status_code == 204
            elif purge == "amqp":
                assert wire.ask(1, "queue.delete", queue="deep").fields["messages"] == 4_000
            else:
                sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="deep")["QueueUrl"])
            assert root.get("/queues/deep").status_code == 404
