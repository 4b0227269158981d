"""Front ends work with a broker that every request and answer reaches as bytes (wire_broker.py): a cross-section of
their own tests runs a second time with it, and between them they use every kind of request there is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laneway.broker import interface
from laneway.broker.interface import Lease, Publish, Request
from laneway.broker.values import Arrival
from laneway.core.message import Messages, Receipts
from laneway.errors import IdempotencyConflict, InvalidInput, LanewayError
from tests.wire_broker import NoValue, through_bytes

ROOT = Path(__file__).parent.parent

#: Chosen so that each kind of request is used, and the frequent ones in many ways.
FILES = {
    "amqp": ["tests/amqp/test_channels.py", "tests/amqp/test_transcripts.py", "tests/amqp/test_limits.py"],
    "rest": [
        "tests/rest/test_publish.py",
        "tests/rest/test_consume.py",
        "tests/rest/test_administration.py",
        "tests/rest/test_exchanges.py",
        "tests/rest/test_vhosts.py",
        "tests/rest/test_producers.py",
        "tests/rest/test_journal.py",
        "tests/rest/test_access_over_http.py",
        "tests/rest/test_rebalancing.py",
    ],
    "sqs": [
        "tests/sqs/test_messages.py",
        "tests/sqs/test_receiving.py",
        "tests/sqs/test_dead_letters.py",
        "tests/sqs/test_fifo.py",
    ],
}


def kinds(request: type = Request) -> set[str]:
    return {kind.__name__ for kind in request.__subclasses__()}


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The kinds of requests that the runs below have used."""
    return set()


@pytest.mark.parametrize("front_end", FILES)
def test_a_front_end_passes_its_own_tests_through_bytes(front_end: str, tmp_path: Path, seen: set[str]) -> None:
    file = tmp_path / "kinds"
    environment = os.environ | {"LANEWAY_TEST_BROKER": "wire", "LANEWAY_TEST_KINDS": str(file)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *FILES[front_end]]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5_000:]
    seen |= set(file.read_text().split())


def test_every_kind_of_request_was_used(seen: set[str]) -> None:
    assert kinds() == {name for name, kind in vars(interface).items() if _is_request(kind)}
    assert kinds() - seen == set()


def _is_request(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Request) and kind is not Request


# The stand-in itself


def test_values_come_out_as_they_went_in() -> None:
    messages = Messages([b"a", b"b"], [b"", b""], [1, None], groups={1: "g"})
    request = Publish([(1,), (2, 3)], messages, ("key", b"print"))
    assert through_bytes(request) == request
    arrival = Arrival(7, None, Receipts(1, range(5, 8), [1, 2, 3], 9))
    assert through_bytes([arrival]) == [arrival]
    assert through_bytes(memoryview(b"body")) == b"body"


@pytest.mark.parametrize(
    "error", [InvalidInput("no", field="x", limit=3), IdempotencyConflict("twice"), LanewayError("?")]
)
def test_errors_come_out_with_all_they_say(error: LanewayError) -> None:
    found = through_bytes(error)
    assert type(found) is type(error)
    assert (found.message, found.field, found.details, str(found)) == (
        error.message,
        error.field,
        error.details,
        str(error),
    )


class Live:
    pass


@pytest.mark.parametrize("live", [Live(), lambda: 0, Path("/"), open], ids=["object", "callable", "path", "builtin"])
def test_what_is_no_value_is_refused(live: object) -> None:
    with pytest.raises(NoValue):
        through_bytes(Lease(live, 1))  # type: ignore[arg-type]
