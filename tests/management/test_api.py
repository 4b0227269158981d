"""Status codes, errors and fields, as RabbitMQ 3.10 answers. What differs is marked, and told on the page."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from .speaking import Api

NOT_THERE = (404, {"error": "Object Not Found", "reason": "Not Found"})


def declare(api: Api, name: str, **more: Any) -> None:
    assert api("PUT", f"/queues/%2F/{name}", more).status == 201


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", "/queues/%2F/none", None, *NOT_THERE),
        ("GET", "/queues/nowhere", None, *NOT_THERE),
        ("GET", "/exchanges/%2F/none", None, *NOT_THERE),
        ("GET", "/vhosts/none", None, *NOT_THERE),
        ("GET", "/users/none", None, *NOT_THERE),
        ("GET", "/permissions/%2F/none", None, *NOT_THERE),
        ("GET", "/policies/%2F/none", None, *NOT_THERE),
        ("GET", "/global-parameters/none", None, *NOT_THERE),
        ("GET", "/connections/none", None, *NOT_THERE),
        ("GET", "/nonsense", None, *NOT_THERE),
        ("DELETE", "/queues/%2F/none", None, *NOT_THERE),
        ("DELETE", "/queues/%2F/none/contents", None, *NOT_THERE),
        ("DELETE", "/vhosts/none", None, *NOT_THERE),
        ("DELETE", "/users/none", None, *NOT_THERE),
        ("DELETE", "/connections/none", None, *NOT_THERE),
        ("PUT", "/queues/nowhere/q", {}, 404, {"error": "not_found", "reason": "vhost_not_found"}),
        ("PUT", "/policies/nowhere/p", {}, 404, {"error": "not_found", "reason": "vhost_not_found"}),
        ("POST", "/definitions/nowhere", {}, 404, {"error": "not_found", "reason": "vhost_not_found"}),
        ("PUT", "/users/bob", {"password": "x"}, 400, {"error": "bad_request", "reason": "tags_not_present"}),
        (
            *("PUT", "/users/bob", {"password": "x", "password_hash": "AAAA", "tags": ""}),
            *(400, {"error": "bad_request", "reason": "both_password_and_password_hash_are_provided"}),
        ),
        (
            *("PUT", "/permissions/%2F/none", {"configure": "", "write": "", "read": ""}),
            *(400, {"error": "bad_request", "reason": "vhost_or_user_not_found"}),
        ),
        (
            *("PUT", "/permissions/%2F/guest", {"write": ".*", "read": ".*"}),
            *(400, {"error": "bad_request", "reason": "[{key_missing,configure}]"}),
        ),
        (
            *("PUT", "/policies/%2F/p", {"pattern": "x"}),
            *(400, {"error": "bad_request", "reason": "[{key_missing,definition}]"}),
        ),
        (
            *("POST", "/queues/%2F/none/get", {"count": 1}),
            *(400, {"error": "bad_request", "reason": "[{key_missing,ackmode},{key_missing,encoding}]"}),
        ),
        (
            *("POST", "/queues/%2F/none/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
            *(404, {"error": "not_found", "reason": "NOT_FOUND - no queue 'none' in vhost '/'"}),
        ),
        (
            *("PUT", "/exchanges/%2F/wrong", {"type": "nonsense"}),
            *(400, {"error": "bad_request", "reason": "unknown exchange type 'nonsense'"}),
        ),
        (
            *("PUT", "/queues/%2F/wrong", {"arguments": {"x-max-length": "a"}}),
            400,
            {
                "error": "bad_request",
                "reason": "invalid arg 'x-max-length' for queue 'wrong' in vhost '/': "
                '"expected integer, got longstr"',
            },
        ),
        (
            *("POST", "/bindings/%2F/e/amq.direct/q/none", {"routing_key": "a"}),
            *(404, {"error": "not_found", "reason": "no queue 'none' in vhost '/'"}),
        ),
        (
            *("PUT", "/parameters/shovel/%2F/s", {"value": {}}),
            *(400, {"error": "bad_request", "reason": "Validation failed\n\ncomponent shovel not found\n"}),
        ),
        (
            *("GET", "/queues?page=0&page_size=1", None, 400),
            {
                "error": "invalid_pagination_parameters",
                "reason": "Invalid pagination parameters: page number 0, page size 1",
            },
        ),
    ],
)
def test_what_is_wrong_is_refused_as_there(
    api: Api, method: str, path: str, body: Any, status: int, told: dict[str, Any]
) -> None:
    answer = api(method, path, body)
    assert (answer.status, answer.json) == (status, told)


@pytest.mark.parametrize("raw", [b"{bad", b"[]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(api: Api, raw: bytes) -> None:
    answer = api("PUT", "/queues/%2F/wrong", raw=raw)
    assert (answer.status, answer.json) == (400, {"error": "bad_request", "reason": "not_json"})


def test_methods_that_are_not_there_are_refused_with_those_that_are(api: Api) -> None:
    answer = api("PUT", "/queues", {})
    assert (answer.status, {*answer.headers["Allow"].split(", ")}) == (405, {"HEAD", "GET", "OPTIONS"})
    assert api("OPTIONS", "/queues").status == 200
    assert api("HEAD", "/overview").status == 200


def test_credentials_are_asked_for_as_basic(api: Api) -> None:
    wrong = api.as_("guest", "wrong")("GET", "/overview")
    assert (wrong.status, wrong.json) == (401, {"error": "not_authorized", "reason": "Login failed"})
    assert wrong.headers["WWW-Authenticate"].startswith("Basic realm=")
    with pytest.raises(urllib.error.HTTPError) as without:
        urllib.request.urlopen(f"{api.root}/overview", timeout=10)
    assert without.value.code == 401 and without.value.headers["WWW-Authenticate"].startswith("Basic realm=")
    without.value.close()


def test_a_queue_is_declared_once(api: Api, name: str) -> None:
    told = {"durable": True, "arguments": {"x-max-length": 5}}
    assert api("PUT", f"/queues/%2F/{name}", told).status == 201
    assert api("PUT", f"/queues/%2F/{name}", told).status == 204
    other = api("PUT", f"/queues/%2F/{name}", {"durable": False, "arguments": {"x-max-length": 5}})
    assert (other.status, other.json["error"]) == (400, "bad_request")
    assert f"inequivalent arg 'durable' for queue '{name}' in vhost '/'" in other.json["reason"]
    row = api.get(f"/queues/%2F/{name}")
    assert row.items() >= {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "type": "classic"}.items()
    assert (row["arguments"], row["exclusive"]) == ({"x-max-length": 5}, False)


def test_a_queue_that_is_not_empty_or_an_exchange_in_use_is_kept_on_demand(api: Api, name: str) -> None:
    declare(api, name)
    told = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
    assert api("POST", "/exchanges/%2F/amq.default/publish", told).json == {"routed": True}
    assert api("DELETE", f"/queues/%2F/{name}?if-empty=true").status == 400
    assert api("PUT", f"/exchanges/%2F/{name}", {"type": "fanout"}).status == 201
    assert api("POST", f"/bindings/%2F/e/{name}/q/{name}", {}).status == 201
    refused = api("DELETE", f"/exchanges/%2F/{name}?if-unused=true")
    assert (refused.status, refused.json["reason"]) == (400, f"exchange '{name}' in vhost '/' in use")
    assert api("DELETE", f"/exchanges/%2F/{name}").status == 204
    assert api("DELETE", f"/queues/%2F/{name}?if-unused=true").status == 204


def test_lists_come_in_pages_sorted_and_cut(api: Api, name: str) -> None:
    assert api("PUT", f"/vhosts/{name}").status == 201
    for i in range(5):
        assert api("PUT", f"/queues/{name}/q{i}", {"arguments": {"x-max-length": 10 - i}}).status == 201
    rows = f"/queues/{name}"
    assert [row["name"] for row in api.get(rows)] == [f"q{i}" for i in range(5)]
    page = api.get(f"{rows}?page=2&page_size=2&columns=name")
    counts = {"filtered_count": 5, "item_count": 2, "page": 2, "page_count": 3, "page_size": 2, "total_count": 5}
    assert page == {**counts, "items": [{"name": "q2"}, {"name": "q3"}]}
    assert api.get(f"{rows}?sort=name&sort_reverse=true&columns=name")[0] == {"name": "q4"}
    by_argument = api.get(f"{rows}?sort=arguments.x-max-length&columns=name,arguments.x-max-length")
    assert by_argument[0] == {"name": "q4", "arguments": {"x-max-length": 6}}
    found = api.get(f"{rows}?page=1&name=Q%5B12%5D&use_regex=true&columns=name")
    assert (found["filtered_count"], found["total_count"]) == (2, 5)
    assert [row["name"] for row in found["items"]] == ["q1", "q2"]
    wrong = api("GET", f"{rows}?page=1&name=(&use_regex=true")
    assert (wrong.status, wrong.json["reason"]) == (400, "Pagination parameters are invalid")
    assert api.get(f"{rows}?page=1&name=q1&columns=name")["items"] == [{"name": "q1"}]
    beyond = api("GET", f"{rows}?page=4&page_size=2")
    assert beyond.json == {"error": "page_out_of_range", "reason": "Page out of range, page: 4 page size: 2, len: 5"}
    assert "message_stats" not in api.get(f"{rows}?disable_stats=true")[0]
    assert api("DELETE", f"/vhosts/{name}").status == 204


def test_bindings_are_named_by_what_an_answer_says(api: Api, name: str) -> None:
    declare(api, name)
    assert api("PUT", f"/exchanges/%2F/{name}", {"type": "topic"}).status == 201
    between = f"/bindings/%2F/e/{name}/q/{name}"
    places = [
        api("POST", between, body).headers["Location"]
        for body in ({"routing_key": "a.b/c", "arguments": {"x": 1}}, {"routing_key": "a.b"}, {}, {"routing_key": "ü"})
    ]
    assert places[1:3] == [f"{name}/a.b", f"{name}/~"]
    assert places[0].startswith(f"{name}/a.b%252Fc~")
    rows = {row["properties_key"]: row for row in api.get(between)}
    assert len(rows) == 4
    for place in places:
        key = unquote(place.rpartition("/")[2])
        assert key in rows
        assert api("GET", f"{between}/{place.rpartition('/')[2]}").json == rows[key]
        assert api("DELETE", f"{between}/{place.rpartition('/')[2]}").status == 204
    assert api.get(between) == []
    assert api("GET", f"{between}/a.b").status == 404
    implied = {"source": "", "vhost": "/", "destination": name, "destination_type": "queue", "routing_key": name}
    assert api.get(f"/queues/%2F/{name}/bindings") == [{**implied, "arguments": {}, "properties_key": name}]


def test_bytes_and_properties_come_back(api: Api, name: str) -> None:
    declare(api, name)
    raw = bytes(range(255, -1, -1))
    properties = {
        "content_type": "a/b",
        "correlation_id": "c",
        "delivery_mode": 2,
        "priority": 3,
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "app_id": "app",
        "reply_to": "r",
        "expiration": "60000",
        "headers": {"n": 1, "text": "ü", "list": [1, "a"], "table": {"b": True}, "float": 1.5},
    }
    told = {"properties": properties, "routing_key": name, "payload": base64.b64encode(raw).decode()}
    assert api("POST", "/exchanges/%2F/amq.default/publish", {**told, "payload_encoding": "base64"}).status == 200
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    row = api("POST", f"/queues/%2F/{name}/get", get).json[0]
    assert (row["payload_encoding"], base64.b64decode(row["payload"])) == ("base64", raw)
    assert row["properties"] == properties
    row = api("POST", f"/queues/%2F/{name}/get", {**get, "truncate": 3, "ackmode": "reject_requeue_false"}).json[0]
    assert (base64.b64decode(row["payload"]), row["payload_bytes"], row["redelivered"]) == (raw[:3], 256, True)
    assert api("POST", f"/queues/%2F/{name}/get", get).json == []


def test_the_server_says_that_it_is_well(api: Api, server: Any) -> None:
    for check in (
        "/healthchecks/node",
        "/aliveness-test/%2F",
        "/health/checks/alarms",
        "/health/checks/local-alarms",
        "/health/checks/virtual-hosts",
        "/health/checks/certificate-expiration/1/months",
    ):
        assert api.get(check) == {"status": "ok"}, check
    critical = {"status": "ok", "reason": "single node cluster"}
    assert api.get("/health/checks/node-is-quorum-critical") == critical
    assert api.get("/health/checks/node-is-mirror-sync-critical") == critical
    assert api.get(f"/health/checks/port-listener/{server.port}") == {"status": "ok", "port": server.port}
    missing = api("GET", "/health/checks/port-listener/1")
    assert (missing.status, missing.json["reason"], missing.json["missing"]) == (503, "No active listener", 1)
    assert api.get("/health/checks/protocol-listener/amqp091") == {"status": "ok", "protocol": "amqp"}
    assert api("GET", "/health/checks/protocol-listener/mqtt").status == 503


def test_a_definition_that_is_wrong_is_refused(api: Api) -> None:
    assert api("POST", "/definitions", raw=b"[]").json == {"error": "bad_request", "reason": "failed_to_parse_json"}
    nowhere = {"queues": [{"name": "q", "vhost": "nowhere", "durable": True, "auto_delete": False, "arguments": {}}]}
    assert api("POST", "/definitions", nowhere).status == 400
    assert api("POST", "/definitions", {"policies": [{"name": "p"}]}).status == 400


@pytest.mark.differs
def test_what_is_not_there_is_refused_and_never_taken_silently(api: Api) -> None:
    for method, path, body in (
        ("PUT", "/vhost-limits/%2F/max-queues", {"value": 5}),
        ("PUT", "/user-limits/guest/max-connections", {"value": 5}),
        ("PUT", "/vhosts/traced", {"tracing": True}),
        ("PUT", "/cluster-name", {"name": "other"}),
        ("PUT", "/policies/%2F/p", {"pattern": ".*", "definition": {"alternate-exchange": "amq.fanout"}}),
        ("PUT", "/policies/%2F/p", {"pattern": ".*", "definition": {"federation-upstream": "u"}}),
        ("POST", "/rebalance/queues", {}),
    ):
        told = api(method, path, body)
        assert told.status == 400 and len(told.json["reason"]) > 20, (path, told)
    assert api.get("/policies/%2F") == [] or all(row["name"] != "p" for row in api.get("/policies/%2F"))


@pytest.mark.differs
def test_a_page_of_another_site_may_not_ask_in_the_name_of_whoever_sits_at_the_browser(api: Api) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        told = httpx.get(f"{api.root}/overview", auth=("guest", "guest"), headers=headers)
        assert told.status_code == 401 and told.json()["error"] == "not_authorised", headers


@pytest.mark.differs
def test_only_a_name_and_a_password_are_taken(api: Api) -> None:
    told = httpx.get(f"{api.root}/overview", headers={"Authorization": "Bearer lw_whatever"})
    assert told.status_code == 401 and told.headers["WWW-Authenticate"].startswith("Basic")
    assert httpx.get(f"{api.root}/overview").status_code == 401


@pytest.mark.differs
def test_the_port_of_http_serves_it_too(api: Api, server: Any) -> None:
    assert Api(server.http_port).get("/whoami") == {"name": "guest", "tags": ["administrator"]}


@pytest.mark.differs
def test_a_long_list_is_refused_with_the_advice_to_ask_for_pages(api: Api, name: str, server: Any) -> None:
    assert api("PUT", f"/vhosts/{name}").status == 201
    long = {"x-what": "w" * 15_000}
    queues = [
        {"name": f"q{i}", "vhost": name, "durable": True, "auto_delete": False, "arguments": long} for i in range(2_300)
    ]
    for start in range(0, len(queues), 1_000):
        assert api("POST", "/definitions", {"queues": queues[start : start + 1_000]}).status == 204
    refused = api("GET", f"/queues/{name}")
    assert refused.status == 400 and "ask for pages" in refused.json["reason"]
    assert len(api.get(f"/queues/{name}?columns=name,messages")) == len(queues)
    assert api.get(f"/queues/{name}?page=5&page_size=500&columns=name")["item_count"] == 300
    assert api("DELETE", f"/vhosts/{name}").status == 204
