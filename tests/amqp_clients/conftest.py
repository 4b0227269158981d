"""One server for all tests of a run; names are unique to each test, so tests neither meet nor clean up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.installed import from_npm

from . import servers
from .servers import Broker

AMQPLIB = "2.3.1"

_numbers = itertools.count(1)

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = servers.start_one(tmp_path_factory.mktemp("broker"))
    yield one
    one.stop()


@pytest.fixture(scope="session")
def broker_url(broker: Broker) -> str:
    return servers.url(broker)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """name("orders") is a name like "…orders" that no other test has."""
    number = next(_numbers)
    return lambda what: f"{request.node.originalname}.{number}.{what}"


@pytest.fixture
def queue(name: Callable[[str], str]) -> str:
    """A name for the one queue that most tests need."""
    return name("queue")


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """connect(user=, vhost=, **parameters) -> a connection of pika that ends with the test."""
    made = []

    def connect(user: str = "guest", vhost: str = "/", **more: object) -> pika.BlockingConnection:
        parameters = pika.URLParameters(servers.url(broker, user, vhost))
        parameters.socket_timeout = 10
        for key, value in more.items():
            setattr(parameters, key, value)
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield connect
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: Connect) -> pika.BlockingConnection:
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def confirming(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel on which publishing returns once it is confirmed, and raises if it is not."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


@pytest.fixture(scope="session")
def amqplib() -> Path:
    """A folder whose node_modules has amqplib."""
    return from_npm("amqplib", AMQPLIB)
