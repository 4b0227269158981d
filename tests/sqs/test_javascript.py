"""AWS's SDK for JavaScript, in a process of Node.js: what it does stands in javascript_scenarios.cjs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.installed import from_npm
from tests.sqs.serving import SqsServing

#: The last that runs on Debian's Node.js.
CLIENT_SQS = "3.967.0"
SCRIPT = Path(__file__).with_name("javascript_scenarios.cjs")
SCENARIOS = re.findall(r"^  async (\w+)\(sqs, name\)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def found(shared_serving: SqsServing) -> dict[str, str | None]:
    packages = from_npm("@aws-sdk/client-sqs", CLIENT_SQS)
    environment = {**os.environ, "NODE_PATH": str(packages / "node_modules"), "AWS_EC2_METADATA_DISABLED": "true"}
    command = ["node", str(SCRIPT), shared_serving.url, *shared_serving.key]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told: dict[str, str | None] = json.loads(done.stdout)
    return told


def test_every_scenario_is_run(found: dict[str, str | None]) -> None:
    assert len(SCENARIOS) >= 7 and set(found) == set(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_javascript(found: dict[str, str | None], scenario: str) -> None:
    assert found[scenario] is None, found[scenario]
