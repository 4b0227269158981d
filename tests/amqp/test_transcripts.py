"""Every transcript that was recorded from RabbitMQ is true of Laneway, line by line (see transcript.py).

Laneway announces the version that they were recorded from. With LANEWAY_TEST_PEER=rabbitmq they are replayed against a
RabbitMQ that is started for it, so that they stay true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.amqp.serving import Serving
from tests.amqp.transcript import FOLDER, replay

Address = tuple[str, int]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    if os.environ.get("LANEWAY_TEST_PEER") == "rabbitmq":
        from tests.amqp_clients.servers import start_one

        broker = start_one(tmp_path_factory.mktemp("rabbitmq"))
        yield ("127.0.0.1", broker.port)
        broker.stop()
    else:
        with Serving(tmp_path_factory.mktemp("amqp"), version="3.10") as serving:
            yield serving.address


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_server_answers_as_rabbitmq_did(path: Path, peer: Address) -> None:
    text = path.read_text()
    said = replay(text, peer)
    assert said == text.splitlines()[: len(said)]
    assert len(said) == len(text.splitlines())
