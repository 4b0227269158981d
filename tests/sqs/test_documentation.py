"""docs/sqs.md names every action, attribute and error of the model that boto3 ships; its example runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3

from laneway.frontends.sqs.errors import KINDS
from laneway.frontends.sqs.queue_attributes import GETTABLE
from tests.crash.server import Server
from tests.sqs.serving import SqsServing

PAGE = (Path(__file__).parent.parent.parent / "docs" / "sqs.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def model() -> Any:
    return boto3.client("sqs", region_name="us-east-1")._service_model


def test_every_action_is_in_the_table_and_answered(serving: SqsServing) -> None:
    told = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", section("Actions"), re.MULTILINE))))
    assert told == set(model().operation_names)
    assert set(serving.server._shared.applications[0]._actions) == told


def test_every_attribute_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("Queue attributes"), re.MULTILINE)
    told = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert told == set(model().shape_for("QueueAttributeName").enum) - {"All"} == GETTABLE


def test_every_system_attribute_is_named() -> None:
    for name in model().shape_for("MessageSystemAttributeName").enum:
        assert name == "All" or f"`{name}`" in section("Messages")


def test_every_error_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("Errors"), re.MULTILINE)
    told = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert told == {shape.name for shape in model().error_shapes} | set(KINDS)


def test_everything_works_as_pasted_on_a_fresh_server(tmp_path: Path) -> None:
    """The example as guest; then the commands of "Who is asking", and the example with the key that they made."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```console\n(.*?)```", section("Who is asking"), re.DOTALL)
    with Server(tmp_path / "data") as server:
        url = f"http://127.0.0.1:{server.port}"
        example = example.replace("http://127.0.0.1:8080", url)
        keyless = re.sub(r'\s*aws_(access_key_id|secret_access_key)="guest",', "", example)
        assert keyless != example
        (tmp_path / "guest.py").write_text(example)
        (tmp_path / "shop.py").write_text(keyless)
        laneway = f'laneway() {{ "{sys.executable}" -m laneway "$@"; }}'
        script = ["set -e", laneway, f'"{sys.executable}" guest.py', *re.findall(r"^\$ (.*)$", commands, re.MULTILINE)]
        script.append(f'"{sys.executable}" shop.py')
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LANEWAY_"))}
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            cwd=tmp_path,
            env={**environment, "LANEWAY_URL": url},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == done.stdout.splitlines()[-1] == "hello", done.stdout
