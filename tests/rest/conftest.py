"""One server for all tests of a worker: each test takes a queue of its own. Tests of limits and stopping start their
own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from laneway.frontends.rest.limits import RestLimits
from tests.rest.serving import Serving, Wire

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("rest")) as serving:
        yield serving


@pytest.fixture
def serving(shared_serving: Serving) -> Serving:
    return shared_serving


@pytest.fixture
def own_serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start a server for this test alone, with limits of its own."""
    with ExitStack() as stack:

        def start(loop: str = "uvloop", **limits: int) -> Serving:
            folder = tmp_path / f"data{next(_numbers)}"
            return stack.enter_context(Serving(folder, RestLimits(**limits), loop=loop))

        yield start


@pytest.fixture
def http(serving: Serving) -> Iterator[httpx.Client]:
    with serving.client() as client:
        yield client


@pytest.fixture
def wire(serving: Serving) -> Iterator[Wire]:
    with serving.connect() as connection:
        yield connection


@pytest.fixture
def queue(http: httpx.Client) -> str:
    """The path of a new queue."""
    path = f"/queues/q{next(_numbers)}"
    assert http.put(path).status_code == 201
    return path
