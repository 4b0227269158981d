"""rabbitmqadmin, as Debian ships it, does with Laneway what it does with RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
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


def test_users_and_their_permissions_are_made_changed_and_deleted(admin: Admin, name: str) -> None:
    admin("declare", "user", f"name={name}", "password=pw", "tags=monitoring")
    assert f"| {name} " in admin("list", "users", "name", "tags")
    admin("declare", "permission", "vhost=/", f"user={name}", "configure=^$", "write=.*", r"read=^a\.")
    row = next(row for row in listed(admin, "list", "permissions") if row["user"] == name)
    assert row == {"user": name, "vhost": "/", "configure": "^$", "write": ".*", "read": r"^a\."}
    admin("delete", "permission", "vhost=/", f"user={name}")
    assert name not in admin("list", "permissions")
    admin("delete", "user", f"name={name}")
    assert name not in admin("list", "users")


def test_policies_are_declared_listed_and_deleted(admin: Admin, name: str) -> None:
    definition = 'definition={"max-length": 3}'
    admin("declare", "policy", f"name={name}", f"pattern=^{name}$", definition, "priority=2", "apply-to=queues")
    row = next(row for row in listed(admin, "list", "policies") if row["name"] == name)
    assert (row["pattern"], row["definition"], row["priority"]) == (f"^{name}$", {"max-length": 3}, 2)
    admin("declare", "operator_policy", f"name={name}", f"pattern=^{name}$", definition)
    assert name in admin("list", "operator_policies")
    assert name in admin("list", "parameters")
    admin("delete", "operator_policy", f"name={name}")
    admin("delete", "policy", f"name={name}")
    assert name not in admin("list", "policies")
    assert name not in admin("list", "parameters")
    admin("list", "vhost_limits")


def test_definitions_are_taken_out_and_put_in(admin: Admin, name: str, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    admin("declare", "vhost", f"name={name}")
    here = ("-V", name)
    admin(*here, "declare", "queue", "name=q", 'arguments={"x-max-length": 5}')
    admin(*here, "declare", "exchange", "name=e", "type=topic")
    admin(*here, "declare", "binding", "source=e", "destination=q", "routing_key=a.#")
    admin(*here, "declare", "policy", "name=p", "pattern=.*", 'definition={"message-ttl": 60000}')
    admin(*here, "export", str(file))
    before = json.loads(file.read_text())
    assert [row["name"] for row in before["queues"]] == ["q"] and before["bindings"][0]["routing_key"] == "a.#"
    admin("delete", "vhost", f"name={name}")
    admin("declare", "vhost", f"name={name}")
    assert admin(*here, "list", "queues") == "No items\n"
    admin(*here, "import", str(file))
    admin(*here, "export", str(file))
    assert json.loads(file.read_text()) == before
    admin("delete", "vhost", f"name={name}")
