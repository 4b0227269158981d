"""What one protocol accepts, all others can read: odd values are declared and published over one of them and read over
the others. Nothing is answered with an internal error, and nothing raises in the server."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.amqp.wire import Wire, method, publish
from tests.attacks.whole_node import WholeNode

ROUNDS = 40
_TEXTS = (
    "",
    "a",
    "x-death",
    "é\u20ac\U0001f600",
    "\x00\x01",
    "<&>\"'",
    "a" * 200,
    "null",
    "-1",
    "1e400",
    "*.#",
    "\ufffe",
)
_NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("across")) as node:
        yield node


def _value(chance: random.Random, depth: int = 0) -> Any:
    """A value of a field table, as the wire of the tests takes it."""
    kind = chance.randrange(11 if depth < 4 else 8)
    if kind == 0:
        return chance.choice(_TEXTS)
    if kind == 1:
        return chance.choice(_NUMBERS)
    if kind == 2:
        return chance.choice((True, False))
    if kind == 3:
        return chance.choice((0.0, -1.5, float("inf"), float("nan"), 1e308))
    if kind == 4:
        return {"!x": bytes(chance.randrange(256) for _ in range(chance.randrange(9)))}
    if kind == 5:
        return {"!V": None}
    if kind == 6:
        return {"!T": chance.choice((0, 1, 2**64 - 1, 2**40))}
    if kind == 7:
        return b"\xff\xfe\x80".decode("latin-1")
    if kind == 8:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(_TEXTS[:8]) + str(i): _value(chance, depth + 1) for i in range(chance.randrange(4))}


_HEADERS = ("x-death", "CC", "BCC", "x-delay", "x-first-death-reason", "x-delivery-count", "x-match", "a", "é")
_ARGUMENTS = (
    "sqs", "x-max-priority", "x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-length", "x-overflow", "x-queue-type", "x-delivery-limit", "x-consumer-timeout", "x-unknown", "",
)  # fmt: skip


def _table(chance: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _value(chance) for name in chance.sample(names, chance.randrange(4))}


def _properties(chance: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {"headers": _table(chance, _HEADERS)}
    for name in ("content-type", "content-encoding", "correlation-id", "reply-to", "message-id", "type", "app-id"):
        if chance.random() < 0.2:
            given[name.replace("-", "_")] = chance.choice(_TEXTS)
    if chance.random() < 0.2:
        given["timestamp"] = chance.choice((0, 2**64 - 1, 2**53))
    if chance.random() < 0.2:
        given["priority"] = chance.choice((0, 5, 255))
    if chance.random() < 0.1:
        given["content_type"] = "application/json"
    return given


class _Amqp:
    """A connection that is opened again when the server ends it, which is an answer too."""

    def __init__(self, node: WholeNode) -> None:
        self._node = node
        self._wire: Wire | None = None

    def ask(self, data: bytes) -> list[str]:
        """Send something, and a method behind it; the names of what came until that was answered, or the end did."""
        if self._wire is None:
            self._wire = self._node.amqp("root", "secret")
        self._wire.send(data + method(1, "basic.qos", count=1))
        names: list[str] = []
        while not names or names[-1] not in ("basic.qos-ok", "channel.close", "connection.close"):
            got = self._wire.read()
            names.append(got.name)
            assert got.fields.get("code") != 541, str(got)
        if names[-1] != "basic.qos-ok":
            self._wire.close()
            self._wire = None
        return names

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_one_protocol_takes_the_others_can_read(
    node: WholeNode, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    sqs, amqp = node.sqs(node.key("root", "aws")), _Amqp(node)
    with node.http() as root:

        def http(verb: str, path: str, **options: Any) -> Any:
            answer = root.request(verb, path, **options)
            assert answer.status_code < 500, (verb, path, options, answer.text)
            return answer

        for turn in range(ROUNDS):
            name = f"q-{seed}-{turn}"
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
            amqp.ask(method(1, "queue.declare", queue=f"{name}-dead"))
            arguments = {**dead, **_table(chance, _ARGUMENTS)} if turn % 2 else dead
            if "queue.declare-ok" not in amqp.ask(method(1, "queue.declare", queue=name, arguments=arguments)):
                amqp.ask(method(1, "queue.declare", queue=name, arguments=dead))
            exchange = chance.choice(("amq.headers", "amq.topic", "amq.direct"))
            key = chance.choice(_TEXTS)
            amqp.ask(
                method(1, "queue.bind", queue=name, exchange=exchange, key=key, arguments=_table(chance, _HEADERS))
            )
            for _ in range(3):
                amqp.ask(publish(1, name, chance.choice((b"", b"\xff\x00", b'{"a": 1}')), **_properties(chance)))
            amqp.ask(publish(1, chance.choice(_TEXTS), b"x", exchange, mandatory=True, **_properties(chance)))
            http("POST", f"/queues/{name}/messages", json={"payload": chance.choice(_TEXTS), "attributes": {"CC": 1}})
            for path in (f"/queues/{name}", f"/queues/{name}/messages", f"/queues/{name}/stats", "/bindings/%2F"):
                http("GET", path)
            http("POST", f"/exchanges/%2F/{exchange}/route", json={"routing_key": key})
            url = f"/000000000000/{name}"
            for call in (
                lambda url=url: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]),
                lambda url=url: sqs.receive_message(
                    QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"], VisibilityTimeout=0
                ),
                lambda url=url: sqs.list_queue_tags(QueueUrl=url),
                lambda url=url: sqs.send_message(
                    QueueUrl=url,
                    MessageBody="x",
                    MessageAttributes={"a": {"DataType": "Number.x", "StringValue": "1"}},
                ),
            ):
                try:
                    call()
                except ClientError as refused:
                    assert refused.response["ResponseMetadata"]["HTTPStatusCode"] < 500, refused
            http("POST", f"/queues/{name}/dequeue", json={"max_messages": 2, "visibility_timeout": 0})
            got = amqp.ask(method(1, "basic.get", queue=name))
            if "basic.get-ok" in got:
                amqp.ask(method(1, "basic.reject", delivery=1, requeue=False))
            amqp.ask(method(1, "basic.get", queue=f"{name}-dead", no_ack=True))
            http("GET", f"/queues/{name}-dead/messages")
            http("POST", f"/queues/{name}-dead/dequeue", json={"max_messages": 10})
            http("POST", f"/queues/{name}/dlq/redrive", json={})
            amqp.ask(method(1, "queue.unbind", queue=name, exchange=exchange, key=key))
            assert json.loads(http("GET", "/healthz").text)["state"] == "alive"
    amqp.close()
    wrong = [r.getMessage() for r in caplog.records if r.exc_info or r.levelname in ("ERROR", "CRITICAL")]
    assert not wrong, wrong
