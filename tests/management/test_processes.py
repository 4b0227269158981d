"""The same with several partitions in several processes: every process answers for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from tests.amqp_clients.servers import Laneway, url

from .speaking import Api, eventually

QUEUES = [f"spread.{i}" for i in range(12)]
ASKED = 8  # times: connections of their own come to either process


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laneway]:
    one = Laneway(tmp_path_factory.mktemp("several"), "--processes", "2", "--partitions", "4")
    one.start()
    yield one
    one.stop()


def test_a_policy_reaches_the_queues_of_all_partitions_and_stays(several: Laneway) -> None:
    api = Api(several.management_port)
    for queue in QUEUES:
        assert api("PUT", f"/queues/%2F/{queue}", {"durable": True}).status == 201
    told = {"pattern": "^spread", "definition": {"max-length": 1}}
    assert api("PUT", "/policies/%2F/short", told).status == 201

    def policies() -> set[str]:
        return {row["policy"] for row in Api(several.management_port).get("/queues/%2F") if row["name"] in QUEUES}

    for _ in range(ASKED):
        eventually(policies, {"short"})
    assert api("PUT", "/queues/%2F/spread.later", {"durable": True}).status == 201
    several.stop()
    several.start()
    api = Api(several.management_port)
    for queue in (*QUEUES, "spread.later"):
        assert api.get(f"/queues/%2F/{queue}")["policy"] == "short"
    assert api("DELETE", "/policies/%2F/short").status == 204
    eventually(policies, {None})


def test_each_process_tells_of_the_connections_and_consumers_of_all(several: Laneway) -> None:
    connections = [pika.BlockingConnection(pika.URLParameters(url(several))) for _ in range(4)]
    for at, connection in enumerate(connections):
        connection.channel().basic_consume(QUEUES[at], lambda *_: None, consumer_tag=f"tag{at}")
    for _ in range(ASKED):
        api = Api(several.management_port)
        assert len(api.get("/connections")) == len(api.get("/channels")) == 4
        assert {row["consumer_tag"] for row in api.get("/consumers")} == {f"tag{at}" for at in range(4)}
        overview = api.get("/overview")["object_totals"]
        assert {name: overview[name] for name in ("connections", "channels", "consumers")} == dict.fromkeys(
            ("connections", "channels", "consumers"), 4
        )
    row = Api(several.management_port).get("/connections")[0]
    assert Api(several.management_port)("DELETE", f"/connections/{row['name'].replace(' ', '%20')}").status == 204
    still_open = []
    for connection in connections:
        try:
            connection.process_data_events(0.2)
            still_open.append(connection)
        except pika.exceptions.ConnectionClosedByBroker as closed:
            assert closed.reply_code == 320
    assert len(still_open) == 3
    eventually(lambda: len(Api(several.management_port).get("/connections")), 3)
    for connection in still_open:
        connection.close()
