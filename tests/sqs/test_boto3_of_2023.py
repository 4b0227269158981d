"""boto3 as it was before it spoke JSON to SQS, in a process of its own: what it does stands in boto3_of_2023.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import from_pypi
from tests.sqs.serving import SqsServing

SCRIPT = Path(__file__).with_name("boto3_of_2023.py")
SCENARIOS = re.findall(r"^@scenario\ndef (\w+)\(", SCRIPT.read_text(), re.MULTILINE)
REQUIREMENTS = [
    "boto3==1.26.165",
    "botocore==1.29.165",
    "jmespath==1.0.1",
    "python-dateutil==2.9.0.post0",
    "s3transfer==0.6.2",
    "six==1.17.0",
    "urllib3==1.26.20",
]


@pytest.fixture(scope="module")
def found(shared_serving: SqsServing) -> dict[str, str | None]:
    packages = from_pypi("boto3-of-2023", REQUIREMENTS)
    command = [sys.executable, str(SCRIPT), shared_serving.url, *shared_serving.key]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told: dict[str, str | None] = json.loads(done.stdout)
    return told


def test_every_scenario_is_run(found: dict[str, str | None]) -> None:
    assert len(SCENARIOS) >= 8 and set(found) == set(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_boto3_of_2023(found: dict[str, str | None], scenario: str) -> None:
    assert found[scenario] is None, found[scenario]
