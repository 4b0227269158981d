"""The rebalancing plan: checked, kept, shown, and there after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from laneway.frontends.rest.rebalancing import RebalancingAnswer
from tests.rest.serving import Serving
from tests.rest.test_consume import error


def plan(**given: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "by": "queue",
        "partition_count": 4,
        "partitions": [{"partition": 0, "per_second": 9.5, "is_hot": True}],
        "moves": [{"vhost": "/", "queue_name": "orders", "per_second": 4.5, "from": 0, "to": 3}],
        "splits": [{"vhost": "/", "queue_name": "mail", "per_second": 5.0, "partition": 0}],
        **given,
    }


def move(**given: Any) -> list[dict[str, Any]]:
    return [{"vhost": "/", "queue_name": "orders", "per_second": 4.5, "from": 0, "to": 3, **given}]


def test_a_plan_is_kept_and_outlives_a_restart(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        assert error(http.get("/rebalancing"))[:2] == (404, "not_found")
        for name in ("orders", "mail"):
            http.put(f"/queues/{name}")
        kept = http.put("/rebalancing", json=plan())
        assert kept.status_code == 200
        answer = msgspec.json.decode(kept.content, type=RebalancingAnswer)
        assert answer.stored_by == "guest" and msgspec.to_builtins(answer.plan) == plan()
        assert http.get("/rebalancing").json() == kept.json()
        http.put("/rebalancing", json=plan(moves=[], splits=[]))
    with Serving(tmp_path / "data") as serving, serving.client() as http:
        assert http.get("/rebalancing").json()["plan"] == plan(moves=[], splits=[])
        assert http.delete("/rebalancing").status_code == 204
        assert error(http.get("/rebalancing"))[:2] == (404, "not_found")
        assert http.delete("/rebalancing").status_code == 204


@pytest.mark.parametrize(
    ("given", "status", "field"),
    [
        ({"format": 2}, 400, "format"),
        ({"by": "tenant"}, 400, "by"),
        ({"partition_count": 0}, 400, "partition_count"),
        ({"moves": move(**{"from": 4})}, 400, "moves[0].from"),
        ({"moves": move(to=0)}, 400, "moves[0].to"),
        ({"moves": move(key="k")}, 400, "moves[0].key"),
        ({"moves": [*move(), *move(to=1)]}, 400, "moves[1].queue_name"),
        ({"moves": move(queue_name="nowhere")}, 404, "moves[0].queue_name"),
        ({"moves": move(vhost="nowhere")}, 404, "moves[0].queue_name"),
        (
            {"splits": [{"vhost": "/", "queue_name": "mail", "per_second": 1, "partition": 4}]},
            400,
            "splits[0].partition",
        ),
        ({"partitions": [{"partition": 1, "per_second": 1, "is_hot": False}] * 2}, 400, "partitions[1].partition"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(http: httpx.Client, given: dict[str, Any], status: int, field: str) -> None:
    for name in ("orders", "mail"):
        http.put(f"/queues/{name}")
    refused = error(http.put("/rebalancing", json=plan(**given)))
    assert (refused[0], refused[2]) == (status, field)


def test_only_admins_see_and_change_it(own_serving: Callable[..., Serving]) -> None:
    serving = own_serving()
    with serving.client() as http:
        http.put("/accounts/root", json={"password": "root", "roles": ["admin"]})
    with serving.client(auth=("root", "root")) as root:
        root.put("/accounts/ann", json={"password": "ann", "roles": ["operator"]})
        assert root.put("/rebalancing", json=plan(moves=[], splits=[])).json()["stored_by"] == "root"
    with serving.client(auth=("ann", "ann")) as ann:
        assert error(ann.get("/rebalancing"))[0] == 403
        assert error(ann.put("/rebalancing", json=plan()))[0] == 403
        assert error(ann.delete("/rebalancing"))[0] == 403
