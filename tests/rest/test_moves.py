"""POST, GET and DELETE /rebalance on a server of one partition, where nothing can move; of several: tests/processes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.rest.test_consume import error


def test_with_one_partition_every_queue_is_at_home(http: httpx.Client) -> None:
    http.put("/queues/moves")
    for asked in ({}, {"dry_run": True}, {"queue_name": "moves"}, {"queue_name": "moves", "to": 0}, {"all": True}):
        answer = http.post("/rebalance", json=asked)
        assert (answer.status_code, answer.json()["moves"], answer.json()["move_count"]) == (202, [], 0)
        assert answer.json()["is_dry_run"] is asked.get("dry_run", False)
    status = http.get("/rebalance").json()
    assert status == {
        "is_running": False,
        "waiting": 0,
        "under_way": [],
        "moved_queues": 0,
        "moved_messages": 0,
        "failed": [],
    }
    assert http.delete("/rebalance").json() == {"cancelled": 0}


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({"queue_name": "no such queue"}, 404, "queue_name"),
        ({"queue_name": "moves", "to": 1}, 400, "to"),
        ({"queue_name": "moves", "to": -1}, 400, "to"),
        ({"to": 0}, 400, "queue_name"),
        ({"vhost": "/"}, 400, "queue_name"),
        ({"when": "now"}, 400, "when"),
    ],
)
def test_what_cannot_move_is_refused(http: httpx.Client, asked: dict[str, Any], status: int, field: str) -> None:
    http.put("/queues/moves")
    found = http.post("/rebalance", json=asked)
    assert (found.status_code, error(found)[2]) == (status, field)


def test_moving_takes_an_admin(http: httpx.Client) -> None:
    http.put("/accounts/mover", json={"password": "mover", "roles": ["operator"]})
    for method in ("POST", "GET", "DELETE"):
        assert http.request(method, "/rebalance", json={}, auth=("mover", "mover")).status_code == 403
