"""A short run against a real server: the demo and the server count the same, and everything promised happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.client import Client
from laneway.demo.ledger import disagreements
from laneway.demo.plan import LANES, OUTAGE, draw
from laneway.demo.play import Player, Progress
from laneway.demo.server import OwnServer, ServerFailed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    folder = tmp_path_factory.mktemp("demo")
    with OwnServer(folder / "data", folder / "server.log") as running:
        yield running


def test_the_demo_and_the_server_count_the_same(server: OwnServer) -> None:
    plan = draw(8, 5, 200)
    seen: list[Progress] = []
    outcome = Player(plan, server.url).play(seen.append)
    with Client(server.url) as client:
        stats = {lane.name: client.stats(lane.name) for lane in LANES}
        in_the_dead_letter_queue = client.stats("payments-dead")["approximate_message_count"]
        details = [m.raw["dead_letter"]["detail"] for m in client.peek("payments-dead")]

    assert outcome.is_drained and not outcome.was_stopped
    assert disagreements(outcome.tallies, {name: found["totals"] for name, found in stats.items()}) == []
    tallies = outcome.tallies
    assert {name: tally.published for name, tally in tallies.items()} == {n: len(m) for n, m in plan.messages.items()}
    for name, tally in tallies.items():
        assert tally.acked + tally.dead_lettered == tally.published
        assert stats[name]["dlq_count"] == tally.dead_lettered

    # All kinds of trouble came up, or the demo shows less than it says.
    assert tallies["payments"].rejected and tallies["payments"].released
    assert in_the_dead_letter_queue == tallies["payments"].dead_lettered
    assert all(detail.startswith(("InvalidAmount: ", "LedgerRefused: ")) for detail in details) and details
    assert tallies["fraud-checks"].exhausted and tallies["fraud-checks"].abandoned
    assert tallies["orders"].exhausted and tallies["orders"].rejected
    assert tallies["emails"].expired
    assert tallies["analytics"].overflowed
    assert sum(tally.redelivered for tally in tallies.values()) > 20

    # The backlog of the outage built up, and was worked off.
    came_in_it = sum(OUTAGE[0] <= message.at_s / 8 < OUTAGE[1] for message in plan.messages["orders"])
    assert max(one.waiting["orders"] for one in seen) > 0.4 * came_in_it > 20
    assert seen[-1].waiting["orders"] == 0


def test_a_run_that_is_stopped_ends_soon_and_leaves_messages_behind(tmp_path: Path) -> None:
    stop = threading.Event()

    def look(progress: Progress) -> None:
        if progress.tallies["orders"].published > 20:
            stop.set()

    with OwnServer(tmp_path / "data", tmp_path / "server.log") as own:
        outcome = Player(draw(600, 1, 100), own.url, stop).play(look)
        with Client(own.url) as client:
            published = client.stats("orders")["totals"]["published"]
    assert outcome.was_stopped and not outcome.is_drained
    assert outcome.seconds < 60
    assert 20 < outcome.tallies["orders"].published == published


def test_a_failure_of_one_thread_ends_the_run_and_is_told(server: OwnServer) -> None:
    player = Player(draw(300, 2, 50), server.url)

    def look(_: Progress) -> None:
        with Client(server.url) as client:
            client.change_queue("orders", max_messages=0, overflow="reject")

    with pytest.raises(Exception, match="full"):
        player.play(look)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(ServerFailed, match=r"did not start: .*data"):
        OwnServer(tmp_path / "data", tmp_path / "server.log").__enter__()
