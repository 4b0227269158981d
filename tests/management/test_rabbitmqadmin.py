"""rabbitmqadmin, as Debian ships it, does with Laneway what it does with RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .speaking import Api

Admin = Callable[..., str]


def listed(admin: Admin, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(admin("-f", "raw_json", *words))
    return rows


def test_queues_are_declared_listed_purged_and_deleted(admin: Admin, name: str) -> None:
    assert admin("declare", "queue", f"name={name}", 'arguments={"x-max-length": 5}') == "queue declared\n"
    row = next(row for row in listed(admin, "list", "queues", "name", "arguments", "durable") if row["name"] == name)
    assert row == {"name": name, "arguments": {"x-max-length": 5}, "durable": True}
    admin("publish", f"routing_key={name}", "payload=one")
    assert admin("purge", "queue", f"name={name}") == "queue purged\n"
    assert admin("get", f"queue={name}") == "No items\n"
    assert admin("delete", "queue", f"name={name}") == "queue deleted\n"
    assert name not in admin("list", "queues")


def test_what_is_published_goes_by_bindings_and_is_got(admin: Admin, name: str) -> None:
    admin("declare", "queue", f"name={name}")
    assert admin("declare", "exchange", f"name={name}", "type=topic") == "exchange declared\n"
    binding = ("declare", "binding", f"source={name}", f"destination={name}", "routing_key=a.#")
    assert admin(*binding) == "binding declared\n"
    assert admin("publish", f"exchange={name}", "routing_key=a.b", "payload=hello") == "Message published\n"
    unrouted = admin("publish", f"exchange={name}", "routing_key=b", "payload=hello")
    assert unrouted == "Message published but NOT routed\n"
    properties = 'properties={"content_type": "text/plain", "headers": {"n": 1}, "priority": 3}'
    admin("publish", f"exchange={name}", "routing_key=a", "payload=second", properties)
    rows = listed(admin, "get", f"queue={name}", "count=2", "ackmode=ack_requeue_true")
    assert [row["payload"] for row in rows] == ["hello", "second"]
    assert [row["message_count"] for row in rows] == [1, 0]
    assert rows[1]["properties"] == {"content_type": "text/plain", "headers": {"n": 1}, "priority": 3}
    again = listed(admin, "get", f"queue={name}", "count=5", "ackmode=ack_requeue_false")
    assert [(row["payload"], row["redelivered"], row["exchange"], row["routing_key"]) for row in again] == [
        ("hello", True, name, "a.b"),
        ("second", True, name, "a"),
    ]
    assert admin("get", f"queue={name}") == "No items\n"
    admin(
        "delete", "binding", f"source={name}", f"destination={name}", "destination_type=queue", "properties_key=a.%23"
    )
    assert admin("publish", f"exchange={name}", "routing_key=a.b", "payload=x") == "Message published but NOT routed\n"
    assert admin("delete", "exchange", f"name={name}") == "exchange deleted\n"


def test_virtual_hosts_are_made_used_and_deleted(admin: Admin, name: str) -> None:
    assert admin("declare", "vhost", f"name={name}") == "vhost declared\n"
    assert name in admin("list", "vhosts")
    admin("delete", "vhost", f"name={name}")
    assert name not in admin("list", "vhosts")


def test_the_server_is_shown(admin: Admin, api: Api) -> None:
    overview = admin("show", "overview")
    assert "rabbitmq_version" in overview and api.get("/overview")["cluster_name"] in overview
    assert api.get("/nodes")[0]["name"] in admin("list", "nodes")
    for what in ("connections", "channels", "consumers"):
        admin("list", what)
