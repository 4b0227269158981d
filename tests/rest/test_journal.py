"""The history over HTTP: what is read through it is what the folder holds; cursors; and who may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from laneway.broker.interface import Publish, PutQueue
from laneway.cli import cli
from laneway.core.message import PLAIN, Messages, encode_props
from laneway.core.settings import QueueSettings
from laneway.frontends.rest.journal import CursorAnswer, JournalAnswer, PlaceAnswer
from laneway.journal.history import follow
from laneway.journal.history.follow import Place
from laneway.journal.history.format import segment_name
from tests.in_thread import wait_for
from tests.rest.partitioned import PartitionedServing
from tests.rest.serving import Serving
from tests.rest.test_consume import error, publish
from tests.wire_broker import of_the_first


@pytest.fixture
def busy(own_serving: Callable[..., Serving]) -> Serving:
    """A server that has done something."""
    serving = own_serving()
    with serving.client() as http:
        http.put("/queues/orders", json={"tier": "critical"})
        http.put("/queues/gone", json={"tier": "low"})
        for n in range(20):
            publish(http, "/queues/orders", {"n": n})
        http.delete("/queues/gone")
    return serving


def journal(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/journal")
    assert answer.status_code == 200
    msgspec.json.decode(answer.content, type=JournalAnswer)
    return dict(answer.json())


@of_the_first
def test_the_history_is_read_in_steps_and_is_what_the_folder_holds(busy: Serving) -> None:
    with busy.client() as http:
        folder = str(busy.folder)
        # What nobody waits for is written a moment later.
        wait_for(lambda: Place(**journal(http)["end"]) == follow.end(folder), "all is durable")
        found = journal(http)
        end = Place(**found["end"])
        assert found["first_position"] == 1
        assert (found["store"], found["tag"]) == follow.store(folder)
        assert [tuple(s.values()) for s in found["segments"]] == follow.segments(folder)
        place = Place(**http.get("/journal/place", params={"position": 1}).json())
        steps = [place]
        while place != end:
            answer = http.get("/journal/advance", params={**place._asdict(), "max_events": 5})
            msgspec.json.decode(answer.content, type=PlaceAnswer)
            steps.append(place := Place(**answer.json()))
        assert len(steps) > 4 and steps == sorted(steps)
        raw = http.get(f"/journal/segments/{end.segment}")
        assert raw.headers["content-type"] == "application/octet-stream"
        with open(busy.folder / segment_name(end.segment), "rb") as file:
            assert raw.content == file.read(end.offset)
        part = http.get(f"/journal/segments/{end.segment}", params={"offset": 64, "length": 100})
        assert part.content == raw.content[64:164]
        assert http.get(f"/journal/segments/{end.segment}", params={"offset": end.offset}).content == b""


@of_the_first
def test_queues_are_known_by_name_also_those_that_are_gone(busy: Serving) -> None:
    with busy.client() as http:
        names = {q["name"]: (q["vhost"], q["tier"]) for q in http.get("/journal/queues").json()}
        assert names == {"orders": ("/", "critical"), "gone": ("/", "low")}
        http.put("/queues/orders", json={"tier": "normal"})
        http.put("/queues/later")
        names = {q["name"]: q["tier"] for q in http.get("/journal/queues").json()}
        assert names == {"orders": "normal", "gone": "low", "later": "normal"}


@of_the_first
def test_a_cursor_is_put_shown_moved_and_deleted(busy: Serving) -> None:
    with busy.client() as http:
        end = journal(http)["end"]["position"]
        made = http.put("/journal/cursors/a%2Fb", json={"position": 3})
        assert made.status_code == 201
        cursor = msgspec.json.decode(made.content, type=CursorAnswer)
        assert (cursor.name, cursor.position, cursor.state) == ("a/b", 3, "ok")
        assert http.get("/journal/cursors/a%2Fb").json()["lag_commits"] == end + 1 - 3  # making it was one more
        assert http.put("/journal/cursors/a%2Fb", json={"position": 5}).status_code == 200
        assert error(http.put("/journal/cursors/a%2Fb", json={"position": 4})) == (409, "conflict", "position")
        back = http.put("/journal/cursors/a%2Fb", json={"position": 4, "rewind": True})
        assert (back.status_code, back.json()["position"]) == (200, 4)
        assert [c["name"] for c in http.get("/journal/cursors").json()] == ["a/b"]
        assert http.delete("/journal/cursors/a%2Fb").status_code == 204
        assert error(http.delete("/journal/cursors/a%2Fb")) == (404, "cursor_not_found", "cursor")
        assert error(http.get("/journal/cursors/a%2Fb")) == (404, "cursor_not_found", "cursor")


@of_the_first
@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/journal/place?position=0", 400),
        ("GET", "/journal/place?position=100000", 400),
        ("GET", "/journal/place", 400),
        ("GET", "/journal/advance?segment=1&offset=65&position=1&max_events=1", 400),
        ("GET", "/journal/advance?segment=1&offset=64&position=2&max_events=1", 400),
        ("GET", "/journal/advance?segment=1&offset=64&position=1&max_events=0", 400),
        ("GET", "/journal/segments/0", 400),
        ("GET", "/journal/segments/2", 400),
        ("GET", "/journal/segments/one", 400),
        ("GET", "/journal/segments/1?length=8388609", 400),
        ("PUT", "/journal/cursors/c", 400),
    ],
)
def test_what_makes_no_sense_is_refused(busy: Serving, method: str, path: str, code: int) -> None:
    with busy.client() as http:
        assert http.request(method, path).status_code == code
        assert http.put("/journal/cursors/c", json={"position": 10_000}).status_code == 400


def test_history_is_for_administrators(busy: Serving) -> None:
    with busy.client() as http:
        everything = {"vhost": "*", "queue": "*", "read": True, "write": True, "configure": True}
        made = http.put("/accounts/clerk", json={"password": "clerk-clerk", "permissions": [everything]})
        assert made.status_code == 201, made.text
    with busy.client(auth=("clerk", "clerk-clerk")) as http:
        paths = ("", "/place?position=1", "/advance?segment=1&offset=64&position=1&max_events=1")
        for path in (*paths, "/segments/1", "/queues", "/cursors", "/cursors/c"):
            assert http.get(f"/journal{path}").status_code == 403, path
        assert http.put("/journal/cursors/c", json={"position": 1}).status_code == 403
        assert http.delete("/journal/cursors/c").status_code == 403


# --- several partitions


@pytest.fixture
def two(tmp_path: Path) -> Iterator[PartitionedServing]:
    """A server of two partitions, each with a queue in it."""
    with PartitionedServing(tmp_path / "data") as serving:
        for number, name in enumerate(("orders", "emails")):
            queue = serving.ask_of(number, PutQueue("/", name, QueueSettings())).info.queue
            for n in range(5 + 5 * number):
                serving.ask_of(number, Publish((queue,), Messages([b"%d" % n], [encode_props(PLAIN)])))
        yield serving


def test_each_partition_shows_its_own_history(two: PartitionedServing) -> None:
    with two.client() as http:
        for number, (folder, queue) in enumerate(((two.folder, "orders"), (two.folder / "partitions" / "1", "emails"))):
            of = {"partition": number}
            found = http.get("/journal", params=of).json()
            assert (found["partition"], found["partition_count"]) == (number, 2)
            assert (found["store"], found["tag"]) == follow.store(str(folder))
            assert [q["name"] for q in http.get("/journal/queues", params=of).json()] == [queue]
            place = http.get("/journal/place", params={**of, "position": 3}).json()
            assert Place(**place) == follow.start(str(folder), 3)
            further = http.get("/journal/advance", params={**of, **place, "max_events": 2}).json()
            assert Place(**further).position > 3
            raw = http.get("/journal/segments/1", params=of).content
            with open(folder / segment_name(1), "rb") as file:
                assert raw == file.read(len(raw)) and len(raw) > 64
        assert http.get("/journal").json()["partition"] == 0
        for path in ("", "/queues", "/segments/1", "/place?position=1"):
            joint = "&" if "?" in path else "?"
            assert error(http.get(f"/journal{path}{joint}partition=2")) == (400, "invalid_input", "partition")


def test_a_cursor_has_a_position_in_each_partition_and_is_one_thing(two: PartitionedServing) -> None:
    with two.client() as http:
        made = http.put("/journal/cursors/c", json={"positions": {"0": 2, "1": 4}})
        assert made.status_code == 201, made.text
        shown = http.get("/journal/cursors/c").json()
        assert [(part["partition"], part["position"]) for part in shown["partitions"]] == [(0, 2), (1, 4)]
        assert shown["lag_commits"] == sum(part["lag_commits"] for part in shown["partitions"]) > 0
        assert (shown["position"], shown["state"]) == (2, "ok")
        assert http.put("/journal/cursors/c", json={"positions": {"1": 6}}).status_code == 200
        assert [part["position"] for part in http.get("/journal/cursors").json()[0]["partitions"]] == [2, 6]
        assert error(http.put("/journal/cursors/c", json={"position": 3})) == (400, "invalid_input", "position")
        assert error(http.put("/journal/cursors/c", json={"positions": {"2": 3}})) == (
            400,
            "invalid_input",
            "partition",
        )
        assert error(http.put("/journal/cursors/c", json={})) == (400, "invalid_input", "positions")
        assert http.delete("/journal/cursors/c").status_code == 204
        assert http.get("/journal/cursors").json() == []
        assert error(http.get("/journal/cursors/c")) == (404, "cursor_not_found", "cursor")


def test_a_cursor_that_is_lost_in_one_partition_is_lost(two: PartitionedServing) -> None:
    with two.client() as http:
        http.put("/journal/cursors/c", json={"positions": {"0": 2, "1": 4}})

        async def lose() -> None:
            two.partitions[1].cursors._lose("c", "the test says so")

        two.run(lose())
        shown = http.get("/journal/cursors/c").json()
        assert (shown["state"], [part["state"] for part in shown["partitions"]]) == ("lost", ["ok", "lost"])


def test_the_command_line_sets_a_cursor_in_every_partition(two: PartitionedServing) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["cursor", *words, "--url", two.url])
        assert result.exit_code == 0, result.output
        return result.output

    assert run("set", "c", "first") == "c is at 0:1,1:1\n"
    assert run("set", "c", "0:2,1:3") == "c is at 0:2,1:3\n"
    assert "0:2,1:3" in run("list")
    ends = [two.partitions[n].engine.journal.history.end().position for n in (0, 1)]
    assert run("set", "c", "end") == f"c is at 0:{ends[0]},1:{ends[1]}\n"
