"""docs/sqs.md names every action, attribute and error of the model that boto3 ships; its example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boto3
import pytest

from laneway.frontends.sqs.errors import KINDS
from laneway.frontends.sqs.queue_attributes import GETTABLE
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


def test_the_example_runs(serving: SqsServing, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", serving.key[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", serving.key[1])
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example.replace("http://127.0.0.1:8080", serving.url), "docs/sqs.md", "exec"), {})
    assert capsys.readouterr().out == "hello\n"
