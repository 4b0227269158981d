"""One message or one request keeps everybody else waiting for a bounded time: what is more goes in slices, or is
refused before it is begun. Work is told by how long the loop computed in one turn, which
other programs on the machine have no part in; the bounds are generous, what was unbounded took seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from laneway.broker import parts
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

    from laneway.broker import local

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
