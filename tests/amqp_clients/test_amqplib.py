"""amqplib, the client of Node.js: each scenario of amqplib_scenarios.cjs in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("amqplib_scenarios.cjs")
SCENARIOS = re.findall(r"^  async (\w+)\(connection\)", SCRIPT.read_text(), re.MULTILINE)


def test_every_scenario_is_run() -> None:
    assert len(SCENARIOS) >= 14


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_amqplib(amqplib: Path, broker_url: str, queue: str, scenario: str) -> None:
    environment = {**os.environ, "NODE_PATH": str(amqplib / "node_modules")}
    command = ["node", str(SCRIPT), broker_url, scenario, f"{queue}.{scenario}"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert found.returncode == 0, found.stderr
