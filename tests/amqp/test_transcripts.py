"""Every transcript that was recorded from RabbitMQ is true of Laneway, line by line (see transcript.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.amqp.serving import Serving
from tests.amqp.transcript import FOLDER, replay


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_the_server_answers_as_rabbitmq_did(path: Path, serving: Serving) -> None:
    text = path.read_text()
    said = replay(text, serving.address)
    assert said == text.splitlines()[: len(said)]
    assert len(said) == len(text.splitlines())
