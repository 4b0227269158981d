"""What infrastructure tools send, in the order in which their sources send it: Terraform's provider (with rabbit-hole,
its client), Ansible's modules, KEDA's scaler in HTTP mode, and rabbitmqadmin of today."""

from __future__ import annotations

import urllib.parse
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from .speaking import Api, eventually


def test_terraform_creates_reads_and_deletes_its_resources(api: Api, name: str) -> None:
    # rabbitmq_vhost
    said = {"default_queue_type": "classic", "description": "of the shop", "tags": None, "tracing": False}
    assert api("PUT", f"/vhosts/{name}", {k: v for k, v in said.items() if v is not None}).status == 201
    row = api.get(f"/vhosts/{name}")
    assert (row["name"], row["description"], row["tracing"]) == (name, "of the shop", False)
    assert api.get(f"/vhost-limits/{name}") == []
    # rabbitmq_user, created and changed
    user = f"{name}.user"
    told = {"name": user, "tags": ["administrator", "management"], "password": "s3cret"}
    assert api("PUT", f"/users/{user}", told).status == 201
    assert api.get(f"/users/{user}")["tags"] == ["administrator", "management"]
    assert api("PUT", f"/users/{user}", {**told, "tags": ["management"]}).status == 204
    assert api.get(f"/users/{user}")["tags"] == ["management"]
    # rabbitmq_permissions
    patterns = {"configure": ".*", "write": "^amq", "read": ""}
    assert api("PUT", f"/permissions/{name}/{user}", patterns).status == 201
    assert api.get(f"/permissions/{name}/{user}") == {"user": user, "vhost": name, **patterns}
    # rabbitmq_exchange and rabbitmq_queue
    settings = {"type": "topic", "durable": True, "auto_delete": False, "arguments": {}}
    assert api("PUT", f"/exchanges/{name}/ex", settings).status == 201
    assert api.get(f"/exchanges/{name}/ex").items() >= settings.items()
    arguments = {"x-message-ttl": 5000, "x-queue-type": "quorum"}
    declared = {"type": "", "durable": True, "auto_delete": False, "arguments": arguments}
    assert api("PUT", f"/queues/{name}/q", declared).status == 201
    row = api.get(f"/queues/{name}/q")
    assert (row["durable"], row["auto_delete"], row["arguments"]) == (True, False, arguments)
    # rabbitmq_binding: its id is made of what Location says, and looked for among the bindings in between
    between = f"/bindings/{name}/e/ex/q/q"
    told = {
        "source": "ex",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "a/#",
        "arguments": {"n": "1"},
    }
    location = api("POST", between, {**told, "vhost": name, "properties_key": ""}).headers["Location"]
    key = unquote(location.split("/")[-1])
    rows = [row for row in api.get(between) if row["properties_key"] == key]
    assert [(row["routing_key"], row["arguments"]) for row in rows] == [("a/#", {"n": "1"})]
    # rabbitmq_policy and rabbitmq_operator_policy
    policy = {"pattern": "^(?!amq\\.).*", "priority": 1, "apply-to": "queues", "definition": {"max-length": 100}}
    for kind in ("policies", "operator-policies"):
        assert api("PUT", f"/{kind}/{name}/p", {"vhost": name, "name": "p", **policy}).status == 201
        row = api.get(f"/{kind}/{name}/p")
        assert {field: row[field] for field in policy} == policy
        assert api("PUT", f"/{kind}/{name}/p", {"vhost": name, "name": "p", **policy, "priority": 2}).status == 204
    # … and everything goes
    for path in (
        f"/operator-policies/{name}/p",
        f"/policies/{name}/p",
        f"{between}/{quote(key, safe='')}",
        f"/queues/{name}/q",
        f"/exchanges/{name}/ex",
        f"/permissions/{name}/{user}",
        f"/users/{user}",
        f"/vhosts/{name}",
    ):
        assert api("DELETE", path).status == 204, path
        assert api("GET", path).status == 404, path


def test_ansible_makes_a_queue_an_exchange_and_a_binding_once(api: Api, name: str) -> None:
    """Each module looks first, and acts if what it finds is not what is wanted; quoting is that of its source."""
    quoted = quote(name, safe="")
    queue, exchange = f"/queues/%2F/{quoted}", f"/exchanges/%2F/{quoted}"
    assert api("GET", queue).status == 404
    wanted: dict[str, Any] = {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 10}}
    assert api("PUT", queue, wanted).status == 201
    found = api.get(queue)
    assert {field: found[field] for field in wanted} == wanted
    assert api("GET", exchange).status == 404
    wanted = {"durable": True, "auto_delete": False, "internal": False, "type": "topic", "arguments": {}}
    assert api("PUT", exchange, wanted).status == 201
    found = api.get(exchange)
    assert {field: found[field] for field in wanted} == wanted
    binding = f"/bindings/%2F/e/{quoted}/q/{quoted}"
    for key in ("orders.*", "#", ""):
        one = f"{binding}/{quote(key) or '~'}"
        assert api("GET", one).status == 404
        assert api("POST", binding, {"routing_key": key, "arguments": {}}).status == 201
        assert api("GET", one).status == 200
    assert len(api.get(binding)) == 3
    for path in (f"{binding}/~", queue, exchange):
        assert api("DELETE", path).status == 204


def test_keda_reads_how_much_waits_and_how_fast_it_goes(api: Api, name: str) -> None:
    names = [f"{name}.{end}" for end in ("a", "b")]
    for at, queue in enumerate(names):
        assert api("PUT", f"/queues/%2F/{queue}", {}).status == 201
        for _ in range(at + 1):
            told = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
            assert api("POST", "/exchanges/%2F/amq.default/publish", told).json == {"routed": True}

    def length() -> tuple[int | None, int | None]:
        row = api.get(f"/queues/%2F/{urllib.parse.quote_plus(names[1])}")
        return row.get("messages"), row.get("messages_ready")

    eventually(length, (2, 2))
    row = api.get(f"/queues/%2F/{names[1]}")
    assert isinstance(row["message_stats"]["publish_details"]["rate"], int | float)
    pattern = quote_plus(rf"^{name}\.")
    found = api.get(f"/queues/%2F?page=1&use_regex=true&pagination=false&name={pattern}&page_size=100")
    assert (found["page_count"], found["filtered_count"]) == (1, 2)
    assert [queue["messages"] for queue in found["items"]] == [1, 2]
    for queue in names:
        api("DELETE", f"/queues/%2F/{queue}")
