"""The OpenAPI document is true: schemathesis sends what it allows and what it forbids, and reads the answers by it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rest.serving import Serving
from tests.rest.test_consume import publish

CONFIG = Path(__file__).parent / "schemathesis.toml"


@pytest.mark.timeout(300)
def test_the_server_does_what_its_document_says(own_serving: Callable[..., Serving], tmp_path: Path) -> None:
    serving = own_serving(wait_ms=50)
    with serving.client() as http:
        for name in ("fuzz", "fuzz-put", "fuzz-changed", "fuzz-deleted"):
            http.put(f"/queues/{name}")
        for name in ("fuzz", "fuzz-deleted"):
            http.put(f"/vhosts/{name}")
        http.put("/vhosts/fuzz/queues/fuzz")
        for name in ("fuzz", "fuzz-other", "fuzz-deleted"):
            http.put(f"/exchanges/fuzz/{name}", json={"type": "fanout"})
        lasting = {"routing_key": "a binding that no fuzz finds"}
        assert http.post("/bindings/fuzz/e/fuzz/q/fuzz", json=lasting).status_code == 201
        publish(http, "/queues/fuzz", 1, {"a": "b"}, priority=9, attributes={"x": 1})
        http.put("/accounts/fuzzer", json={"password": "fuzzer", "roles": ["admin"]})
        assert http.put("/accounts/somebody", auth=("fuzzer", "fuzzer")).status_code == 201
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
    command += [f"{serving.url}/openapi.json", "--auth", "fuzzer:fuzzer", "--no-color"]
    command += ["--exclude-path-regex", "^/vhosts/[^/]+/|^/queues/{vhost}|^/events/live$"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    report = re.sub(r"(%[0-9A-F]{2}|.)\1{50,}", r"\1…", done.stdout)
    assert done.returncode == 0, report[-15_000:] + done.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", report)
    assert tested and int(tested[1]) > 30, report
    with serving.client(auth=("fuzzer", "fuzzer")) as http:
        assert http.get("/queues/fuzz/stats").json()["totals"]["published"] > 2, "fuzzing published nothing"
        routed = http.get("/vhosts/fuzz/queues/fuzz/stats").json()["totals"]["published"]
        assert routed > 2, "fuzzing published nothing through an exchange"


@pytest.fixture
def document(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    return dict(answer.json())


def test_every_queue_path_exists_with_a_virtual_host_too(document: dict[str, Any]) -> None:
    paths = {path: set(methods) for path, methods in document["paths"].items()}
    short = {path: paths.pop(path) for path in list(paths) if path.startswith("/queues/{vhost}/{queue}")}
    plain = {path: methods for path, methods in paths.items() if path.startswith("/queues")}
    named = {path: methods for path, methods in paths.items() if path.startswith("/vhosts/{vhost}/queues")}
    for kind in ("exchanges", "bindings"):
        own = {path: methods for path, methods in paths.items() if path.startswith(f"/{kind}/{{vhost}}")}
        other = {path: methods for path, methods in paths.items() if path.startswith(f"/vhosts/{{vhost}}/{kind}")}
        assert own and {f"/vhosts/{{vhost}}/{kind}" + path.split("{vhost}")[1]: own[path] for path in own} == other
    assert short and all(methods <= plain[path.replace("{vhost}/", "", 1)] for path, methods in short.items())
    assert {f"/vhosts/{{vhost}}{path}": methods for path, methods in plain.items()} == named


def test_every_operation_has_its_own_id_and_says_what_it_does(document: dict[str, Any]) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 50
    for operation in operations:
        assert operation["summary"] and {"400", "503"} < set(operation["responses"])
        for status, response in operation["responses"].items():
            assert ("content" in response) == (status != "204")


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    names = set(document["components"]["schemas"])
    found = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert found and found <= names
