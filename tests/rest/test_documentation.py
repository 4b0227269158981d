"""docs/http-api.md is true: its examples run, and it names every path, code and limit there is."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from laneway import errors
from laneway.config import Config
from laneway.core.settings import QueueSettings
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.words import BY_CORE
from tests.rest.serving import Serving
from tests.wire_broker import of_the_first

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "http-api.md").read_text()
FRONTENDS = ROOT / "src" / "laneway" / "frontends"
SOURCES = "\n".join(path.read_text() for kind in ("http", "rest") for path in (FRONTENDS / kind).glob("*.py"))


def section(title: str) -> str:
    """The text under a heading, up to the next one of its kind or higher."""
    level = title.split(" ")[0]
    after = PAGE.split(f"\n{title}\n", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", after, maxsplit=1)[0]


@of_the_first
def test_the_examples_run_as_they_stand(own_serving: Callable[..., Serving], tmp_path: Path) -> None:
    assert shutil.which("curl"), "the examples are curl's; install curl to run them"
    serving = own_serving()
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 20
    script = "set -euo pipefail\n" + "\n".join(blocks)
    script = script.replace("http://127.0.0.1:8080", serving.url)
    (tmp_path / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nmax-time = 30\nwrite-out = "\\n"\n')
    done = subprocess.run(
        ["bash", "-x", "-c", script],
        env={"CURL_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert '"error":{' not in done.stdout, done.stdout


def test_every_path_is_on_the_page(http: httpx.Client) -> None:
    paths: dict[str, Any] = http.get("/openapi.json").json()["paths"]
    missing = [
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        if not path.startswith("/vhosts/{vhost}/")
        for method in methods
        if f"`{method.upper()} {path}`" not in PAGE
    ]
    assert missing == []


#: No client is told of these: whoever meets one inside the server looks again and tries once more.
INTERNAL = (errors.DocumentChanged, errors.QueueElsewhere)


def test_every_error_code_is_in_the_table_with_its_status() -> None:
    from laneway.frontends.rest.errors import status_of

    rows = re.findall(r"^\| (\d{3}) \| (`.*?) \|", section("### Errors"), re.MULTILINE)
    told = {(int(status), code) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    raised = {(int(status), code) for status, code in re.findall(r'HttpError\(\s*(\d{3}),\s*"(\w+)"', SOURCES)}
    for kind in vars(errors).values():
        is_error = isinstance(kind, type) and issubclass(kind, errors.LanewayError)
        is_told = is_error and not issubclass(kind, INTERNAL)
        if is_told and not issubclass(kind, errors.StartError | errors.PipelineError):  # never while serving
            raised.add((status_of(kind("x")), kind.code))
    assert told == raised


def test_the_limits_are_as_configured() -> None:
    limits, config = RestLimits(), Config()
    table = section("### Limits")
    for text in (
        f"| request body | {config.max_body_bytes // 2**20} MiB | `max_body_bytes` |",
        f"| request line and headers | {config.max_header_bytes // 2**10} KiB | `max_header_bytes` |",
        f"| headers | {config.max_header_count} | `max_header_count` |",
        f"| path and query | {limits.target_bytes // 2**10} KiB |",
        f"dequeue or a page | {limits.batch_count} |",
        f"| long poll | {limits.wait_ms // 1000} s |",
        f"| bodies in one page of peek | {limits.peek_bytes // 2**20} MiB |",
        f"| connections | {config.max_connections} | `max_connections` |",
        f"worked on at once | {limits.pipelined_count} |",
        f"| unsent answers of a connection | {limits.unsent_bytes // 2**20} MiB |",
        f"password checks at once | {limits.slow_count} |",
        f"again for its body | {config.request_timeout_seconds:g} s | `request_timeout_seconds` |",
        f"| time without a request | {config.idle_timeout_seconds:g} s | `idle_timeout_seconds` |",
        f"| time without taking an answer | {limits.send_timeout_ms // 1000} s |",
    ):
        assert text in table, text


def test_every_setting_of_a_queue_is_on_the_page_with_its_default() -> None:
    table = section("## Queues")
    for field in set(QueueSettings.__struct_fields__) - {"beneath"}:  # which is nobody's but the policies'
        word = BY_CORE.get(field)
        assert f"`{word.wire if word else field}`" in table, field
    for default in ("| `visibility_timeout` | 30 |", "| `max_receive_count` | 5 |", "| `retention_seconds` | 604800 |"):
        assert default in table
