"""Random walks whose every answer was recorded from RabbitMQ: see walk.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .servers import Broker
from .walk import STEPS, Walk

RECORDED: dict[int, list[list[Any]]] = dict(
    map(json.loads, Path(__file__).with_name("walks.jsonl").read_text().splitlines())
)


@pytest.mark.parametrize("seed", RECORDED)
def test_every_step_is_answered_as_by_rabbitmq(broker: Broker, seed: int) -> None:
    recorded = RECORDED[seed]
    assert len(recorded) == STEPS
    steps = Walk(broker, seed).steps([len(delivered) for _, _, delivered in recorded])
    for number, (answered, wanted) in enumerate(zip(steps, recorded, strict=True)):
        assert answered == wanted, f"step {number}"
