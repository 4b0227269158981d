"""One server for all these tests, a real process. With LANEWAY_TEST_PEER=rabbitmq it is Debian's RabbitMQ with its
management plugin, which shows that the tests ask for what that does; those of what differs are left out then."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.amqp_clients.servers import Laneway, RabbitMQ

from .speaking import Api, rabbitmqadmin

IS_RABBITMQ = os.environ.get("LANEWAY_TEST_PEER") == "rabbitmq"
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if IS_RABBITMQ and item.get_closest_marker("differs"):
            item.add_marker(pytest.mark.skip(reason="docs/management-api.md says that RabbitMQ does otherwise"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laneway | RabbitMQ]:
    folder = tmp_path_factory.mktemp("management")
    one = RabbitMQ(folder, has_management=True) if IS_RABBITMQ else Laneway(folder)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def api(server: Laneway | RabbitMQ) -> Api:
    return Api(server.management_port)


@pytest.fixture
def admin(server: Laneway | RabbitMQ) -> Callable[..., str]:
    """rabbitmqadmin, as a program."""
    return lambda *words: rabbitmqadmin(server.management_port, *words)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """One that no other test has."""
    return f"{request.node.originalname}.{next(_numbers)}"
