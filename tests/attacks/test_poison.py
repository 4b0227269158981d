"""What is wrong with one message concerns that message alone: others are delivered, and every request is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from laneway.frontends.rest import props
from laneway.frontends.sqs import receiving
from tests.amqp.wire import Wire, method, publish
from tests.attacks.whole_node import WholeNode
from tests.in_thread import wait_for

MOST = (1 << 63) - 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("poison")) as node:
        yield node


def _settled(wire: Wire) -> None:
    """Everything sent before was carried out."""
    assert wire.ask(1, "basic.qos", count=0).name == "basic.qos-ok"


def _dead_letter_queue(wire: Wire, name: str) -> tuple[str, str]:
    queue, dead = name, f"{name}-dead"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    assert wire.ask(1, "queue.declare", queue=dead).name == "queue.declare-ok"
    assert wire.ask(1, "queue.declare", queue=queue, arguments=arguments).name == "queue.declare-ok"
    return queue, dead


def _entry(**forged: Any) -> dict[str, Any]:
    usual = {"queue": "q", "reason": "rejected", "count": {"!l": 1}, "time": {"!T": 1}, "exchange": ""}
    return {**usual, "routing-keys": ["q"], **forged}


FORGED: list[Any] = [
    [_entry(count={"!l": MOST})],
    [_entry(count={"!l": -MOST - 1})],
    [_entry(time={"!T": (1 << 64) - 1}, count={"!l": MOST})],
    [_entry(time={"!l": -1})],
    [_entry(count="many")],
    [_entry(queue=7, reason=["rejected"])],
    [_entry(**{"routing-keys": {"a": "table"}})],
    [_entry() for _ in range(500)],
    "no list at all",
    {"a": "table"},
    [[[[[["deep"]]]]]],
    [],
]


@pytest.mark.parametrize("way", ["push", "push without acks", "get", "get without ack"])
def test_forged_histories_stop_no_consumer(node: WholeNode, way: str) -> None:
    with node.amqp("root", "secret") as wire:
        queue, dead = _dead_letter_queue(wire, f"forged-{way.replace(' ', '-')}")
        for i, forged in enumerate(FORGED):
            headers = (
                {"x-death": [{**e, "queue": queue} if e.get("queue") == "q" else e for e in forged]}
                if (isinstance(forged, list) and all(isinstance(e, dict) for e in forged))
                else {"x-death": forged}
            )
            wire.send(publish(1, queue, b"%d" % i, headers=headers))
        wire.send(publish(1, queue, b"good"))
        for _ in range(len(FORGED) + 1):
            tag = wire.ask(1, "basic.get", queue=queue).fields["delivery"]
            wire.read(), wire.read()
            wire.send(method(1, "basic.reject", delivery=tag, requeue=False))
        _settled(wire)
        bodies, histories = _take_all(wire, dead, way, len(FORGED) + 1)
        assert bodies == [*map(str, range(len(FORGED))), "good"]
    for history in histories:
        assert history[0]["queue"] == queue and history[0]["reason"] == "rejected"
        assert len(history) <= 33
    assert histories[0][0]["count"] == {"!l": MOST}  # it was counted up as far as a count goes
    assert histories[1][0]["count"] == {"!l": 1}
    assert histories[-1][0]["count"] == {"!l": 1}


def _take_all(wire: Wire, queue: str, way: str, count: int) -> tuple[list[str], list[Any]]:
    no_ack = "without" in way
    if way.startswith("push"):
        assert wire.ask(1, "basic.consume", queue=queue, tag="t", no_ack=no_ack).name == "basic.consume-ok"
    bodies, histories = [], []
    for _ in range(count):
        if way.startswith("push"):
            wire.expect("basic.deliver")
        else:
            assert wire.ask(1, "basic.get", queue=queue, no_ack=no_ack).name == "basic.get-ok"
        histories.append(wire.read().fields["headers"]["x-death"])
        bodies.append(wire.read().payload.decode())
    return bodies, histories


def test_message_whose_properties_fit_no_frame_of_a_consumer_is_delivered_as_rabbitmq_does(node: WholeNode) -> None:
    """They fit the publisher's frames and not the consumer's: nobody else is kept waiting by it."""
    with node.amqp("root", "secret") as wire:
        assert wire.ask(1, "queue.declare", queue="large").name
        for body in (b"got", b"pushed"):
            wire.send(publish(1, "large", body, headers={"long": "x" * 20_000}))
        wire.send(publish(1, "large", b"small"))
        _settled(wire)
        with node.amqp("root", "secret", frame_max=4096) as narrow:
            assert narrow.ask(1, "basic.get", queue="large").fields["messages"] == 2
            header = narrow.read()
            assert (header.fields["headers"], narrow.read().payload) == ({"long": "x" * 20_000}, b"got")
            assert narrow.ask(1, "basic.consume", queue="large", tag="t").name == "basic.consume-ok"
            frames = [narrow.read() for _ in range(6)]
            assert [frames[2].payload, frames[5].payload] == [b"pushed", b"small"]


def _break(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """A mistake in the server that only messages with the correlation id `broken` meet."""
    real = getattr(module, name)

    def breaking(block: Any, *rest: Any) -> Any:
        if b"broken" in bytes(block):
            raise RuntimeError("a mistake was planted")
        return real(block, *rest)

    monkeypatch.setattr(module, name, breaking)


def test_http_answers_with_the_others_and_the_broken_one_dies_in_the_end(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _break(monkeypatch, props, "decode_props")
    with node.http() as root:
        root.put("/queues/half", json={"max_receive_count": 1, "visibility_timeout": 1}).raise_for_status()
        texts = [{"payload": i, "content_type": "text/plain", "correlation_id": "fine"} for i in range(3)]
        texts[1]["correlation_id"] = "broken"
        for text in texts:
            sent = root.post("/queues/half/messages", json={**text, "payload": str(text["payload"])})
            assert sent.status_code == 201, sent.text
        peeked = root.get("/queues/half/messages")
        assert peeked.status_code == 200 and len(peeked.json()["messages"]) == 3
        got = root.post("/queues/half/dequeue", json={"max_messages": 10})
        assert got.status_code == 200, got.text
        assert [message["payload"] for message in got.json()["messages"]] == ["0", "2"]
        for message in got.json()["messages"]:
            root.delete(
                f"/queues/half/messages/{message['message_id']}", params={"receipt_handle": message["receipt_handle"]}
            )
        assert "cannot be shown and is set aside" in caplog.text
        stats: dict[str, Any] = {}

        def died() -> bool:
            stats.update(root.get("/queues/half/stats").json())
            return bool(stats["dlq_count"] == 1)

        wait_for(died, "the broken message is a dead letter")


def test_http_get_acks_only_what_it_shows(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, props, "decode_props")
    with node.http() as root:
        root.put("/queues/getting")
        for correlation in ("fine", "broken", "fine"):
            root.post(
                "/queues/getting/messages",
                json={"payload": "x", "content_type": "text/plain", "correlation_id": correlation},
            )
        got = root.get("/queues/getting/get", params={"count": 3, "ack_mode": "ack_requeue_false"})
        assert got.status_code == 200 and len(got.json()["messages"]) == 2
        stats = root.get("/queues/getting/stats").json()
        assert (stats["in_flight_count"], stats["totals"]["acked"]) == (1, 2)


def test_sqs_receives_the_others(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sqs = node.sqs(node.key("root", "aws"))
    url = sqs.create_queue(QueueName="sqs-half")["QueueUrl"]
    for word in ("fine", "broken", "fine"):
        sqs.send_message(
            QueueUrl=url, MessageBody="x", MessageAttributes={"a": {"DataType": "String", "StringValue": word}}
        )
    _break(monkeypatch, receiving, "decode_props")
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert len(got["Messages"]) == 2
    assert "cannot be received and is set aside" in caplog.text
