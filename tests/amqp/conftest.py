"""One server for all tests of a worker: each test takes names of its own. Tests of limits and time start their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from laneway.frontends.amqp.limits import AmqpLimits
from tests.amqp.serving import Serving
from tests.amqp.wire import Wire

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("amqp")) as serving:
        yield serving


@pytest.fixture
def serving(shared_serving: Serving) -> Serving:
    return shared_serving


@pytest.fixture
def own_serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start a server for this test alone, with limits of its own."""
    with ExitStack() as stack:

        def start(**limits: int) -> Serving:
            folder = tmp_path / f"data{next(_numbers)}"
            return stack.enter_context(Serving(folder, AmqpLimits(**limits)))

        yield start


@pytest.fixture
def wire(serving: Serving) -> Iterator[Wire]:
    """A connection with an open channel 1."""
    with serving.log_in() as wire:
        yield wire


@pytest.fixture
def queue(wire: Wire) -> str:
    name = f"q{next(_numbers)}"
    assert wire.ask(1, "queue.declare", queue=name, durable=1).name == "queue.declare-ok"
    return name
