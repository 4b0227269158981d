"""One server for all tests of a run; names are unique to each test, so tests neither meet nor clean up."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

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
def amqplib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose node_modules has amqplib; kept in the user's cache, because it never changes."""
    for program in ("node", "npm"):
        assert shutil.which(program), f"{program} is missing; tools/services.sh test installs it"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "laneway" / f"amqplib-{AMQPLIB}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be installing it at this moment
        if not done.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", f"amqplib@{AMQPLIB}"]
            (folder / "package.json").write_text('{"private": true}')
            found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
            assert found.returncode == 0, found.stderr
            done.touch()
    return folder
