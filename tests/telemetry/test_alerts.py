"""The files in deploy/ for Prometheus and KEDA: promtool accepts them, and alerts reach a receiver through a real
Prometheus and Alertmanager that scrape a real server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from laneway.telemetry.families import FAMILIES
from tests.crash.server import Server, eventually

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "laneway-alerts.yml"


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    for command in (["check", "rules", RULES.name], ["test", "rules", "laneway-alerts.test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=RULES.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_each_alert_is_tested_and_asks_for_metrics_that_exist() -> None:
    tested = set(re.findall(r"alertname: (\w+)", (RULES.parent / "laneway-alerts.test.yml").read_text()))
    assert tested == {rule["alert"] for rule in rules()}
    known = {f.shown_name for f in FAMILIES} | {f"laneway_{f.name}_bucket" for f in FAMILIES if f.kind == "histogram"}
    asked = {name for rule in rules() for name in re.findall(r"laneway_\w+", rule["expr"])}
    assert asked and asked <= known


def test_what_keda_asks_for_is_there(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        http = server.connect()
        for tier in ("critical", "normal", "low"):
            scaled, _ = yaml.safe_load_all((DEPLOY / "keda" / f"{tier}.yaml").read_text())
            own, prometheus = (trigger["metadata"] for trigger in scaled["spec"]["triggers"])
            http.must(201, "PUT", f"/queues/orders-{tier}", {"tier": tier})
            http.must(201, "POST", f"/queues/orders-{tier}/messages", [{"payload": "x"}] * 3)
            stats = http.must(200, "GET", urllib.parse.urlparse(own["url"]).path)
            assert stats[own["valueLocation"]] == 3
            assert set(re.findall(r"laneway_\w+", prometheus["query"])) <= {f.shown_name for f in FAMILIES}


# --- for real


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def receiving() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A webhook; its port, and the alerts that came."""
    came: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], came
    finally:
        server.shutdown()


def configure(folder: Path, laneway: int, alertmanager: int, webhook: int) -> None:
    """As the rules are, but nothing has to last before it is an alert."""
    (folder / "rules.yml").write_text(re.sub(r"for: \w+", "for: 0s", RULES.read_text()))
    prometheus = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "laneway", "static_configs": [{"targets": [f"127.0.0.1:{laneway}"]}]}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(prometheus))
    route = {"receiver": "hook", "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"}
    hook = {"name": "hook", "webhook_configs": [{"url": f"http://127.0.0.1:{webhook}/"}]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump({"route": route, "receivers": [hook]}))


def test_alerts_of_a_real_server_reach_a_receiver_and_are_resolved(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "data"))
        webhook, came = stack.enter_context(receiving())
        ports = [free_port() for _ in range(2)]
        configure(tmp_path, server.port, ports[1], webhook)
        stack.enter_context(
            running(
                "prometheus-alertmanager",
                f"--config.file={tmp_path}/alertmanager.yml",
                f"--storage.path={tmp_path}/am",
                f"--web.listen-address=127.0.0.1:{ports[1]}",
                "--cluster.listen-address=",
                log=tmp_path / "alertmanager.log",
            )
        )
        stack.enter_context(
            running(
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                f"--web.listen-address=127.0.0.1:{ports[0]}",
                log=tmp_path / "prometheus.log",
            )
        )

        def is_scraped() -> bool:
            asked = urllib.parse.urlencode({"query": 'laneway_process_up{process="0"}'})
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/api/v1/query?{asked}", timeout=5) as answer:
                    return bool(json.load(answer)["data"]["result"])
            except OSError:
                return False

        eventually("the server is scraped", is_scraped, within_s=60)
        http = server.connect()
        http.must(201, "PUT", "/queues/deep")
        for _ in range(11):
            http.must(201, "POST", "/queues/deep/messages", [{"payload": "x"}] * 1000)

        def has_come(name: str, status: str) -> bool:
            return any((a["labels"]["alertname"], a["status"]) == (name, status) for a in came)

        for name in ("LanewayQueueDeep", "LanewayQueueWithoutConsumer"):
            eventually(f"{name} fires", lambda name=name: has_come(name, "firing"), within_s=60)
        deep = next(alert for alert in came if alert["labels"]["alertname"] == "LanewayQueueDeep")
        assert deep["labels"] | {"queue": "deep", "vhost": "/", "severity": "warning"} == deep["labels"]
        assert deep["annotations"]["summary"] == "Queue deep of / has 11000 messages waiting"
        http.must(200, "POST", "/queues/deep/purge")
        eventually("it is over", lambda: has_come("LanewayQueueDeep", "resolved"), within_s=60)
