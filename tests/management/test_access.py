"""Who may do what: tags and permissions as RabbitMQ's tools give them count here and over AMQP."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest

from laneway.cli.accounts import permissions_text
from tests.amqp_clients.servers import Laneway, RabbitMQ

from .speaking import Api


def make_user(api: Api, user: str, tags: Any = "management") -> Api:
    assert api("PUT", f"/users/{user}", {"password": user, "tags": tags}).status == 201
    return api.as_(user)


def permit(api: Api, user: str, configure: str, write: str, read: str, vhost: str = "%2F") -> None:
    told = {"configure": configure, "write": write, "read": read}
    assert api("PUT", f"/permissions/{vhost}/{user}", told).status in (201, 204)


def connect(server: Laneway | RabbitMQ, user: str) -> pika.BlockingConnection:
    address = f"amqp://{user}:{user}@127.0.0.1:{server.port}/%2F"
    return pika.BlockingConnection(pika.URLParameters(address))


def test_permissions_are_regular_expressions_found_in_names(api: Api, server: Laneway | RabbitMQ, name: str) -> None:
    make_user(api, name, "")
    permit(api, name, rf"^{name}\.(?!secret)", "", r"\.in$|amq\.topic")
    told = {"user": name, "vhost": "/", "configure": rf"^{name}\.(?!secret)", "write": "", "read": r"\.in$|amq\.topic"}
    assert api.get(f"/permissions/%2F/{name}") == told
    assert told in api.get("/permissions")
    connection = connect(server, name)
    channel = connection.channel()
    channel.queue_declare(f"{name}.a.in")
    assert channel.basic_get(f"{name}.a.in")[0] is None
    for refused in (
        lambda ch: ch.queue_declare(f"{name}.secret"),
        lambda ch: ch.queue_declare("another"),
        lambda ch: ch.queue_bind(f"{name}.a.in", "amq.topic", "x"),  # which takes write on the queue
    ):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            refused(channel)
        assert closed.value.reply_code == 403
        channel = connection.channel()
    permit(api, name, ".*", ".*", ".*")
    channel.queue_bind(f"{name}.a.in", "amq.topic", "x")
    connection.close()


def test_a_permission_that_is_taken_away_counts_no_more(api: Api, server: Laneway | RabbitMQ, name: str) -> None:
    make_user(api, name)
    permit(api, name, ".*", ".*", ".*")
    connect(server, name).close()
    assert api("DELETE", f"/permissions/%2F/{name}").status == 204
    assert api("DELETE", f"/permissions/%2F/{name}").status == 404
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connect(server, name)


def test_a_user_sees_what_it_may_enter(api: Api, name: str) -> None:
    user = make_user(api, name)
    assert user.get("/queues") == []
    refused = user("GET", "/queues/%2F")
    assert (refused.status, refused.json["reason"]) == (401, "User not authorised to access virtual host")
    for path, who in (("/users", "administrator"), ("/nodes", "monitor"), ("/definitions", "administrator")):
        told = user("GET", path)
        assert (told.status, told.json) == (401, {"error": "not_authorised", "reason": f"Not {who} user"})
    assert user.get("/whoami") == {"name": name, "tags": ["management"]}


def test_tags_are_kept_and_say_what_one_may(api: Api, name: str) -> None:
    monitor = make_user(api, name, "monitoring,team-a")
    assert api.get(f"/users/{name}")["tags"] == ["monitoring", "team-a"]
    assert monitor("GET", "/nodes").status == 200
    assert monitor("PUT", "/users/other", {"password": "x", "tags": ""}).status == 401
    told = {"password": name, "tags": ["administrator"]}
    assert api("PUT", f"/users/{name}", told).status == 204
    assert monitor("PUT", f"/users/{name}.b", {"password": "x", "tags": ""}).status == 201
    assert monitor("DELETE", f"/users/{name}.b").status == 204
    assert api("PUT", f"/users/{name}", {"password": name, "tags": "team-a"}).status == 204
    refused = monitor("GET", "/overview")
    assert (refused.status, refused.json["reason"]) == (401, "Not management user")


def test_a_policymaker_makes_policies_where_it_may_enter(api: Api, name: str) -> None:
    user = make_user(api, name, "policymaker")
    told = {"pattern": f"^{name}", "definition": {"max-length": 1}}
    assert user("PUT", f"/policies/%2F/{name}", told).status == 401
    permit(api, name, "^$", "^$", "^$")
    assert user("PUT", f"/policies/%2F/{name}", told).status == 201
    assert user("DELETE", f"/policies/%2F/{name}").status == 204
    assert user("PUT", f"/operator-policies/%2F/{name}", told).status == 401
    other = make_user(api, f"{name}.other", "monitoring")
    permit(api, f"{name}.other", ".*", ".*", ".*")
    refused = other("PUT", f"/policies/%2F/{name}", told)
    assert (refused.status, refused.json["error"]) == (401, "not_authorised")


def test_without_a_password_nobody_logs_in_by_one(api: Api, name: str) -> None:
    user = make_user(api, name)
    assert user("GET", "/whoami").status == 200
    assert api("PUT", f"/users/{name}", {"tags": "management"}).status == 204
    assert user("GET", "/whoami").status == 401


@pytest.mark.parametrize("kind", ["sha256", "sha512"])
def test_users_come_with_the_hash_of_their_password(api: Api, name: str, kind: str) -> None:
    salt = b"\x01\x02\x03\x04"
    digest = hashlib.new(kind, salt + b"s3cret").digest()
    told = {
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": f"rabbit_password_hashing_{kind}",
        "tags": "management",
    }
    assert api("PUT", f"/users/{name}", told).status == 201
    assert api.as_(name, "s3cret").get("/whoami")["name"] == name
    assert api.as_(name, "S3cret")("GET", "/whoami").status == 401
    listed = next(row for row in api.get("/definitions")["users"] if row["name"] == name)
    assert (listed["password_hash"], listed["hashing_algorithm"]) == (told["password_hash"], told["hashing_algorithm"])


def test_permissions_go_with_their_virtual_host(api: Api, name: str) -> None:
    make_user(api, name)
    assert api("PUT", f"/vhosts/{name}").status == 201
    permit(api, name, ".*", ".*", ".*", vhost=name)
    assert api("DELETE", f"/vhosts/{name}").status == 204
    assert api("PUT", f"/vhosts/{name}").status == 201
    assert all(row["user"] != name for row in api.get(f"/vhosts/{name}/permissions"))
    api("DELETE", f"/vhosts/{name}")


def test_topic_permissions_say_which_routing_keys(api: Api, server: Laneway | RabbitMQ, name: str) -> None:
    user = make_user(api, name)
    permit(api, name, ".*", ".*", ".*")
    assert api("PUT", f"/exchanges/%2F/{name}", {"type": "topic"}).status == 201
    told = {"exchange": name, "write": r"^{username}\.", "read": "^open"}
    path = f"/topic-permissions/%2F/{name}"
    assert api("GET", path).status == 404
    assert api("PUT", path, told).status == 201
    assert api("PUT", path, told).status == 204
    row = {"user": name, "vhost": "/", **told}
    assert api.get(path) == [row] == api.get(f"/users/{name}/topic-permissions")
    assert row in api.get("/topic-permissions") and row in api.get("/vhosts/%2F/topic-permissions")
    connection = connect(server, name)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name)
    channel.queue_bind(name, name, "open.#")
    for key in (f"{name}.a", f"{name}.b.c"):
        channel.basic_publish(name, key, b"x")
    channel.basic_publish("amq.topic", "anything", b"x")  # of which nothing is said
    for refused in (
        lambda ch: ch.basic_publish(name, "other", b"x"),
        lambda ch: ch.queue_bind(name, name, "other"),
    ):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            refused(channel)
        assert closed.value.reply_code == 403
        where = f"exchange '{name}' in vhost '/'"
        assert f"access to topic 'other' in {where} refused for user '{name}'" in closed.value.reply_text
        channel = connection.channel()
        channel.confirm_delivery()
    message = {"properties": {}, "routing_key": "other", "payload": "x", "payload_encoding": "string"}
    refused_here = user("POST", f"/exchanges/%2F/{name}/publish", message)
    assert refused_here.status in (400, 401)
    assert user("POST", f"/exchanges/%2F/{name}/publish", {**message, "routing_key": f"{name}.a"}).status == 200
    assert api("DELETE", path).status == 204
    channel.basic_publish(name, "other", b"x")
    connection.close()


@pytest.mark.differs
def test_topic_permissions_count_over_the_http_api_too(api: Api, server: Laneway, name: str) -> None:
    make_user(api, name)
    permit(api, name, ".*", ".*", ".*")
    assert api("PUT", f"/exchanges/%2F/{name}", {"type": "topic"}).status == 201
    assert api("PUT", f"/queues/%2F/{name}", {}).status == 201
    assert api("PUT", f"/topic-permissions/%2F/{name}", {"exchange": name, "write": "^a$", "read": "^b$"}).status == 201
    auth = (name, name)
    root = f"http://127.0.0.1:{server.http_port}"
    for key, status in (("a", 200), ("b", 403)):
        told = {"routing_key": key, "payload": 1}
        assert httpx.post(f"{root}/exchanges/%2F/{name}/publish", json=told, auth=auth).status_code == status
        part = [{"vhost": "/", "exchange": name, "routing_key": key, "body": "eA=="}]
        staged = httpx.put(f"{root}/producers/{name}/stages/s/parts/{key}", json=part, auth=auth)
        assert staged.status_code == (201 if status == 200 else status), staged.text
    for key, status in (("b", 201), ("a", 403)):
        told = {"routing_key": key}
        bound = httpx.post(f"{root}/bindings/%2F/e/{name}/q/{name}", json=told, auth=auth)
        assert bound.status_code == status


def test_what_is_no_regular_expression_is_refused(api: Api, name: str) -> None:
    make_user(api, name)
    told = api("PUT", f"/permissions/%2F/{name}", {"configure": "(", "write": "", "read": ""})
    assert (told.status, told.json["error"]) == (400, "bad_request")
    assert api("GET", f"/permissions/%2F/{name}").status == 404


def test_many_users_are_deleted_at_once(api: Api, name: str) -> None:
    for end in ("a", "b"):
        make_user(api, f"{name}.{end}")
    assert {f"{name}.a", f"{name}.b"} <= {row["name"] for row in api.get("/users/without-permissions")}
    assert api("POST", "/users/bulk-delete", {"users": [f"{name}.a", f"{name}.b"]}).status == 204
    assert api("GET", f"/users/{name}.a").status == 404


@pytest.mark.differs
def test_accounts_of_laneway_are_told_in_rabbitmqs_words(api: Api, server: Laneway) -> None:
    """`limited` was made over the HTTP API, with a pattern of Laneway's."""
    assert api.get("/users/limited")["tags"] == ["management"]
    limited = r"^limited\..*$"
    told = {"user": "limited", "vhost": "/", "configure": limited, "write": limited, "read": limited}
    assert api.get("/permissions/%2F/limited") == told
    assert api.get("/permissions/%2F/guest") == {
        "user": "guest",
        "vhost": "/",
        "configure": ".*",
        "write": ".*",
        "read": ".*",
    }
    refused = api("DELETE", "/permissions/%2F/limited")
    assert refused.status == 400 and "roles or patterns" in refused.json["reason"]


@pytest.mark.differs
def test_the_other_apis_show_what_was_given_here(api: Api, server: Laneway, name: str) -> None:
    make_user(api, name)
    permit(api, name, "^$", ".*", "")
    told = {"exchange": "amq.topic", "write": "^a", "read": ""}
    assert api("PUT", f"/topic-permissions/%2F/{name}", told).status == 201
    root = f"http://127.0.0.1:{server.http_port}"
    account = httpx.get(f"{root}/accounts/{name}", auth=("guest", "guest")).json()
    assert account["vhost_permissions"] == [{"vhost": "/", "configure": "^$", "write": ".*", "read": ""}]
    assert account["topic_permissions"] == [{"vhost": "/", **told}]
    assert permissions_text(account) == (
        "write /.*/ configure /^$/ in /; read keys // write keys /^a/ of amq.topic in /"
    )


@pytest.mark.differs
def test_a_pattern_that_backtracks_for_ever_is_found_in_nothing(api: Api, server: Laneway, name: str) -> None:
    user = make_user(api, name)
    slow = "(?:(?:a{1,20}){1,20}){1,20}b"
    permit(api, name, slow, slow, slow)
    for end in "cdef":
        assert user("PUT", f"/queues/%2F/{'a' * 200}{end}").status == 401
    found = api("GET", f"/queues?page=1&use_regex=true&name={quote(slow)}")
    assert found.status == 200 or "takes too long" in found.json["reason"]
    refused = api("GET", f"/queues?page=1&use_regex=true&name={quote('(a{1000}){1000}')}")
    assert (refused.status, refused.json["reason"]) == (400, "Pagination parameters are invalid")
