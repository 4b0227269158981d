"""GET /stats and GET /stats/history, over one process and several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.node.watching import Watching
from laneway.telemetry.history import FIGURES, ROWS, STEP_S, FigureHistory, HistoryRow, joined_rows
from laneway.telemetry.load import Loads, PartitionSurvey, ProcessLoad
from tests.crash.server import Connection, Server, eventually
from tests.processes.several import SeveralProcesses

DEPTHS = {"a": 3, "b": 3, "c": 1, "d": 0, "e": 7}


def fill(http: Connection) -> None:
    for name, depth in DEPTHS.items():
        http.must(201, "PUT", f"/queues/{name}")
        if depth:
            http.must(
                201,
                "POST",
                f"/queues/{name}/messages",
                [{"payload": "x", "delay_seconds": 900 * (i == 2)} for i in range(depth)],
            )


def names(answer: Any) -> list[str]:
    return [queue["queue_name"] for queue in answer["queues"]]


def pages(http: Connection, query: str) -> list[list[str]]:
    found, cursor = [], ""
    for _ in range(20):
        answer = http.must(200, "GET", f"/stats?{query}{cursor}")
        found.append(names(answer))
        if answer["next_cursor"] is None:
            return found
        cursor = f"&cursor={answer['next_cursor']}"
    raise AssertionError(found)


def test_pages_of_all_partitions_are_in_the_order_asked_for(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data", partitions=4) as server:
        http = server.connect()
        fill(http)
        assert pages(http, "limit=2") == [["e", "a"], ["b", "c"], ["d"]]
        assert pages(http, "limit=5") == [["e", "a", "b", "c", "d"]]
        assert pages(http, "prefix=a&vhost=%2F") == [["a"]]
        assert set(pages(http, "sort=age&limit=4")[0]) == {"a", "b", "c", "e"}
        first = http.must(200, "GET", "/stats?limit=2")["queues"][1]
        assert (first["approximate_message_count"], first["waiting_count"], first["delayed_count"]) == (3, 2, 1)
        one = http.must(200, "GET", "/queues/a/stats")
        assert one["totals"] == first["totals"] and one["messages_by_priority"] == first["messages_by_priority"]
        (message,) = http.must(200, "POST", "/queues/c/dequeue", {})["messages"]
        where = f"/queues/c/messages/{message['message_id']}/reject"
        http.must(204, "POST", where, {"receipt_handle": message["receipt_handle"]})
        assert names(http.must(200, "GET", "/stats?sort=dead_letters&limit=1")) == ["c"]

        def busiest() -> bool:
            http.must(201, "POST", "/queues/d/messages", {"payload": "x"})
            return names(http.must(200, "GET", "/stats?sort=rate&limit=1")) == ["d"]

        eventually("the busiest is first", busiest)
        for wrong in ("sort=name", "limit=0", "limit=1001", "cursor=x", "more=1"):
            assert http.call("GET", f"/stats?{wrong}")[0] == 400, wrong
        assert http.call("GET", "/stats?vhost=none")[0] == 404


def test_accounts_see_the_counts_of_their_own_queues(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        fill(server.connect())
        http = server.connect()
        own = [{"queue": name, "vhost": "*", "read": True, "write": False, "configure": False} for name in "bd"]
        http.must(201, "PUT", "/accounts/root", {"password": "a long password", "roles": ["admin"]})
        root = server.connect(user="root", password="a long password")
        root.must(201, "PUT", "/accounts/ann", {"password": "a long password", "permissions": own})
        ann = server.connect(user="ann", password="a long password")
        assert pages(ann, "limit=1") == [["b"], ["d"]]
        assert pages(ann, "limit=100") == [["b", "d"]]
        assert ann.call("GET", "/stats/history")[0] == 403


def test_history_of_any_process_is_that_of_the_server(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        http = server.connect()

        def has_rows() -> Any:
            found = http.must(200, "GET", "/stats/history")
            return found if found["times"] else None

        found = eventually("a row is noted", has_rows)
        assert set(found["figures"]) == set(FIGURES) and found["step_seconds"] == STEP_S
        assert {len(column) for column in found["figures"].values()} == {len(found["times"])}
        assert found["figures"]["resident_bytes"][0] > 20_000_000


# --- the rings


def loads(waiting: int, age_s: float = 0.0) -> Loads:
    partition = PartitionSurvey(partition=0, state="ready", waiting=waiting, oldest_age_s=age_s)
    process = ProcessLoad(process=0, pid=1, state="ready", partitions=[0], connection_count=2)
    return Loads(processes=[process], partitions=[partition])


def test_an_hour_is_kept_and_no_more() -> None:
    history = FigureHistory()
    for step in range(ROWS + 5):
        history.note(1_000 + step * STEP_S + 0.5, loads(step))
    assert len(history.rows) == ROWS == 3600 // STEP_S
    assert [history.rows[at].figures[0] for at in (0, -1)] == [5, ROWS + 4]
    history.note(1_000, loads(0))  # the clock was set back
    assert history.rows[-1].figures[0] == ROWS + 4


def test_rows_of_processes_are_added_up_and_of_ages_the_largest_counts() -> None:
    one, other = FigureHistory(), FigureHistory()
    one.note(1_000, loads(1, 5.0))
    one.note(1_010, loads(2))
    other.note(1_013, loads(3, 9.0))
    joined = joined_rows([one.rows, other.rows])
    place = FIGURES.index("oldest_age_seconds"), FIGURES.index("connections")
    assert [(row.at_s, row.figures[0], *(row.figures[p] for p in place)) for row in joined] == [
        (1_000, 1, 5.0, 2),
        (1_010, 5, 9.0, 4),
    ]
    assert joined_rows([]) == [] and isinstance(joined[0], HistoryRow)


async def _never() -> Loads:
    raise ValueError("it cannot be looked at")


def test_a_look_that_fails_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    async def run() -> None:
        watching = Watching(_never)
        watching.start()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert watching._task is not None and not watching._task.done()
        await watching.stop()

    asyncio.run(run())
    assert "could not be noted" in caplog.text
