"""Virtual hosts: made, listed to those who may see them, and deleted with all that is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from laneway.broker.interface import RemoveDocument
from laneway.frontends.rest.answers import VhostAnswer, VhostsAnswer
from tests.rest.serving import Serving
from tests.rest.test_consume import error
from tests.wire_broker import of_the_first


def names(http: httpx.Client) -> list[str]:
    return [one.vhost for one in msgspec.json.decode(http.get("/vhosts").content, type=VhostsAnswer).vhosts]


def test_a_virtual_host_is_made_seen_and_deleted(http: httpx.Client) -> None:
    made = http.put("/vhosts/a%2Fb")
    assert made.status_code == 201
    assert msgspec.json.decode(made.content, type=VhostAnswer) == VhostAnswer("a/b", 0)
    assert http.put("/vhosts/a%2Fb").status_code == 200
    http.put("/vhosts/a%2Fb/queues/q1")
    http.put("/vhosts/a%2Fb/queues/q2")
    assert http.get("/vhosts/a%2Fb").json() == {"vhost": "a/b", "queue_count": 2}
    assert {"/", "a/b"} <= set(names(http))
    assert http.delete("/vhosts/a%2Fb").status_code == 204
    assert "a/b" not in names(http)
    assert error(http.get("/vhosts/a%2Fb")) == (404, "vhost_not_found", "vhost")
    assert error(http.delete("/vhosts/a%2Fb")) == (404, "vhost_not_found", "vhost")


def test_nothing_is_created_in_a_virtual_host_that_is_not_there(http: httpx.Client) -> None:
    answer = http.put("/vhosts/nowhere/queues/q")
    assert error(answer) == (404, "vhost_not_found", "vhost")
    assert "'nowhere'" in answer.json()["error"]["message"]
    assert error(http.get("/vhosts/nowhere/queues")) == (404, "vhost_not_found", "vhost")


def test_the_default_virtual_host_stays(http: httpx.Client) -> None:
    assert error(http.delete("/vhosts/%2F")) == (409, "conflict", "vhost")
    assert http.put("/vhosts/%2F").status_code == 200


@pytest.mark.parametrize("name", ["a%00b", "a" * 256, "%7F"])
def test_a_name_that_cannot_be_is_refused(http: httpx.Client, name: str) -> None:
    assert error(http.put(f"/vhosts/{name}")) == (400, "invalid_input", "vhost")


def test_queues_that_need_each_other_go_with_their_virtual_host(http: httpx.Client) -> None:
    http.put("/vhosts/round")
    http.put("/vhosts/round/queues/a")
    http.put("/vhosts/round/queues/b", json={"dead_letter_queue": "a"})
    http.patch("/vhosts/round/queues/a", json={"dead_letter_queue": "b"})
    http.post("/vhosts/round/queues/a/messages", json={"payload": 1})
    assert http.delete("/vhosts/round").status_code == 204
    assert http.put("/vhosts/round").status_code == 201
    assert http.get("/vhosts/round/queues").json()["queues"] == []
    assert http.put("/vhosts/round/queues/a").status_code == 201
    assert http.get("/vhosts/round/queues/a/stats").json()["approximate_message_count"] == 0


def test_who_waits_on_a_queue_is_told_when_its_virtual_host_goes(serving: Serving, http: httpx.Client) -> None:
    http.put("/vhosts/brief")
    http.put("/vhosts/brief/queues/q")
    with serving.connect() as waiting:
        body = b'{"wait_seconds":20}'
        waiting.send(
            b"POST /vhosts/brief/queues/q/dequeue HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        while http.get("/vhosts/brief/queues/q/stats").json()["consumers_waiting"] == 0:
            pass
        http.delete("/vhosts/brief")
        assert waiting.read().json() == {"messages": []}


def test_virtual_hosts_come_back_after_a_restart(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        http.put("/vhosts/kept")
        http.put("/vhosts/gone")
        http.put("/vhosts/gone/queues/q")
        http.delete("/vhosts/gone")
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        assert names(http) == ["/", "kept"]


@of_the_first
def test_a_queue_of_a_store_without_a_list_makes_its_virtual_host_exist(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        http.put("/vhosts/old")
        http.put("/vhosts/old/queues/q")
        serving.ask(RemoveDocument("vhosts", "old"))  # as a store of before has it
    for _ in range(2):
        with Serving(tmp_path / "data") as serving, serving.client() as http:
            assert names(http) == ["/", "old"]
            http.delete("/vhosts/old/queues/q")  # it stays also when its last queue goes


def test_who_may_see_and_make_virtual_hosts(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.client() as http:
        for name in ("shop", "lab"):
            http.put(f"/vhosts/{name}")
        shop_only = [{"queue": "*", "vhost": "shop", "read": True}]
        http.put("/accounts/root", json={"password": "root", "roles": ["admin"]})
    with serving.client(auth=("root", "root")) as root:
        root.put("/accounts/shop", json={"password": "shop", "permissions": shop_only})
        root.put("/accounts/watch", json={"password": "watch", "roles": ["monitor"]})
        root.put("/accounts/op", json={"password": "op", "roles": ["operator"]})
    with serving.client(auth=("shop", "shop")) as user:
        assert names(user) == ["shop"]
        assert user.get("/vhosts/shop").status_code == 200
        for answer in (user.get("/vhosts/lab"), user.put("/vhosts/new"), user.delete("/vhosts/shop")):
            assert error(answer)[:2] == (403, "forbidden")
    with serving.client(auth=("watch", "watch")) as monitor:
        assert names(monitor) == ["/", "lab", "shop"]
        assert monitor.put("/vhosts/new").status_code == 403
    with serving.client(auth=("op", "op")) as operator:
        assert operator.put("/vhosts/new").status_code == 201
        assert operator.delete("/vhosts/new").status_code == 204
