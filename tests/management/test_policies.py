"""Policies take effect: on queues that are there and on those that come, over AMQP and HTTP, and end when they go."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.amqp_clients.servers import Laneway, RabbitMQ, url

from .speaking import Api, eventually


def put(api: Api, name: str, definition: dict[str, Any], **more: Any) -> None:
    told = api("PUT", f"/policies/%2F/{name}", {"pattern": f"^{name}", "definition": definition, **more})
    assert told.status in (201, 204), told


def policy_of(api: Api, queue: str) -> Callable[[], tuple[Any, Any, Any]]:
    def look() -> tuple[Any, Any, Any]:
        row = api.get(f"/queues/%2F/{queue}")
        names = ("policy", "operator_policy", "effective_policy_definition")
        return tuple(row.get(name) for name in names)  # type: ignore[return-value]

    return look


@pytest.fixture
def channel(server: Laneway | RabbitMQ) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(url(server)))
    yield connection.channel()
    connection.close()


def depth(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_policy_bounds_a_queue_that_is_there_and_lets_go_of_it(api: Api, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.confirm_delivery()
    put(api, name, {"max-length": 2})
    eventually(policy_of(api, name), (name, None, {"max-length": 2}))
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    eventually(lambda: depth(channel, name), 2)
    assert channel.basic_get(name, auto_ack=True)[2] == b"2"
    assert api("DELETE", f"/policies/%2F/{name}").status == 204
    eventually(policy_of(api, name), (None, None, {}))
    for body in (b"4", b"5", b"6"):
        channel.basic_publish("", name, body)
    eventually(lambda: depth(channel, name), 4)


def test_a_queue_that_comes_later_has_it_at_once(api: Api, channel: Any, name: str) -> None:
    put(api, name, {"max-length": 1, "overflow": "reject-publish"})
    channel.queue_declare(f"{name}.later", arguments={"x-max-length": 5})
    channel.confirm_delivery()
    channel.basic_publish("", f"{name}.later", b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", f"{name}.later", b"2")
    # What it was declared with is what it can be declared with again.
    channel.queue_declare(f"{name}.later", arguments={"x-max-length": 5})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.connection.channel().queue_declare(f"{name}.later", arguments={"x-max-length": 1})
    assert refused.value.reply_code == 406
    eventually(lambda: policy_of(api, f"{name}.later")()[0], name)
    assert api.get(f"/queues/%2F/{name}.later")["arguments"] == {"x-max-length": 5}


def test_the_highest_priority_counts_and_what_was_declared_stands(api: Api, channel: Any, name: str) -> None:
    put(api, f"{name}", {"max-length": 7, "overflow": "reject-publish"}, priority=1)
    told = {"pattern": f"^{name}", "definition": {"max-length": 3, "overflow": "reject-publish"}, "priority": 5}
    assert api("PUT", f"/policies/%2F/{name}.above", told).status == 201
    operator = {"pattern": f"^{name}", "definition": {"max-length": 2}, "apply-to": "queues"}
    assert api("PUT", f"/operator-policies/%2F/{name}.op", operator).status == 201
    channel.queue_declare(name, arguments={"x-overflow": "drop-head"})
    wanted = (f"{name}.above", f"{name}.op", {"max-length": 2, "overflow": "reject-publish"})
    eventually(policy_of(api, name), wanted)
    channel.confirm_delivery()
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", name, body)  # drop-head, as it was declared: nothing is refused
    eventually(lambda: depth(channel, name), 2)
    assert channel.basic_get(name, auto_ack=True)[2] == b"2"


def test_messages_expire_and_go_where_a_policy_says(api: Api, channel: Any, name: str) -> None:
    channel.queue_declare(f"letters.{name}")
    definition = {"message-ttl": 50, "dead-letter-exchange": "", "dead-letter-routing-key": f"letters.{name}"}
    put(api, name, definition)
    channel.queue_declare(name)
    channel.basic_publish("", name, b"late")
    eventually(lambda: depth(channel, f"letters.{name}"), 1)
    told = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    message = api("POST", f"/queues/%2F/letters.{name}/get", told).json[0]
    death = message["properties"]["headers"]["x-death"][0]
    assert (message["payload"], death["queue"], death["reason"], death["count"]) == ("late", name, "expired", 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"definition": {}}, "no policy provided"),
        ({"definition": {"nonsense": 1}}, "are not recognised policy settings"),
        ({"definition": {"max-length": "a"}}, ""),
        ({"definition": {"max-length": -1}}, ""),
        ({"pattern": "("}, "pattern should be regular expression but is invalid"),
        ({"apply-to": "x"}, "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'"),
        ({"priority": "a"}, "priority should be a number, actually was"),
    ],
)
def test_what_is_no_policy_is_refused(api: Api, name: str, given: dict[str, Any], said: str) -> None:
    told = api("PUT", f"/policies/%2F/{name}", {"pattern": "^x", "definition": {"max-length": 1}, **given})
    assert (told.status, told.json["error"]) == (400, "bad_request")
    assert said in told.json["reason"] and told.json["reason"].startswith("Validation failed\n\n")
    assert api("GET", f"/policies/%2F/{name}").status == 404


def test_policies_go_with_their_virtual_host(api: Api, name: str) -> None:
    assert api("PUT", f"/vhosts/{name}").status == 201
    told = {"pattern": ".*", "definition": {"max-length": 1}}
    assert api("PUT", f"/policies/{name}/p", told).status == 201
    assert api("DELETE", f"/vhosts/{name}").status == 204
    assert api("PUT", f"/vhosts/{name}").status == 201
    assert json.dumps(api.get(f"/policies/{name}")) == "[]"
    api("DELETE", f"/vhosts/{name}")
