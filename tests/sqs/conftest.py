"""One server for all tests of a worker; each test takes a queue of its own, and both forms unless it says otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.sqs.serving import SqsServing

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServing]:
    with SqsServing(tmp_path_factory.mktemp("sqs")) as serving:
        yield serving


@pytest.fixture(scope="session")
def aging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServing]:
    """Another one, whose clock tests move; timers of what waits for it are not moved."""
    with SqsServing(tmp_path_factory.mktemp("aging")) as serving:
        yield serving


@pytest.fixture
def serving(shared_serving: SqsServing) -> SqsServing:
    return shared_serving


@pytest.fixture(scope="session", params=["json", "query"])
def shared_sqs(request: pytest.FixtureRequest, shared_serving: SqsServing) -> Any:
    return shared_serving.sqs(form=request.param)


@pytest.fixture
def sqs(shared_sqs: Any) -> Any:
    return shared_sqs


@pytest.fixture
def new_name() -> Callable[[str], str]:
    return lambda suffix="": f"q{next(_numbers)}{suffix}"


@pytest.fixture
def new_queue(sqs: Any, new_name: Callable[[str], str]) -> Callable[..., str]:
    """Create a queue with these attributes; its URL."""

    def create(suffix: str = "", **attributes: str) -> str:
        if suffix == ".fifo":
            attributes.setdefault("FifoQueue", "true")
        return str(sqs.create_queue(QueueName=new_name(suffix), Attributes=attributes)["QueueUrl"])

    return create


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue()
