"""What a server takes up without a restart: SIGHUP, `laneway config reload`, and what both refuse."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from laneway.config import Config, load_config
from laneway.errors import ConfigInvalid
from laneway.reloading import Reloaded, Reloading
from tests.crash.server import Server, eventually


def certificate(folder: Path, serial: int) -> None:
    """A certificate for localhost, in the files that the servers here are started with."""
    files = ("-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem"))
    request = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-set_serial", str(serial))
    subprocess.run(["openssl", *request, *files, "-days", "2"], check=True, capture_output=True)


def served_serial(port: int) -> int:
    """The serial number of the certificate that somebody gets who connects now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain) as secure:
        shown = subprocess.run(
            ["openssl", "x509", "-inform", "der", "-noout", "-serial"],
            input=secure.getpeercert(binary_form=True),
            capture_output=True,
            check=True,
        )
    return int(shown.stdout.decode().strip().removeprefix("serial="), 16)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    certificate(tmp_path, 1)
    file = tmp_path / "laneway.toml"
    file.write_text(
        f'tls_cert = "{tmp_path}/server.pem"\ntls_key = "{tmp_path}/server.key"\namqps = "127.0.0.1:0"\n'
        'log_level = "info"\nmax_queues = 100\n'
    )
    return file


def start(file: Path, *flags: str) -> Server:
    return Server(file.with_name("data"), "--config", str(file), *flags)


def amqps_port(server: Server) -> int:
    found = re.search(r"amqps://127\.0\.0\.1:(\d+)", server.first_line)
    assert found is not None, server.first_line
    return int(found[1])


def change(file: Path, *pairs: tuple[str, str]) -> None:
    text = file.read_text()
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)


def log_has(server: Server, words: str) -> Callable[[], bool]:
    return lambda: words in server.log()


def test_sighup_takes_up_certificates_and_what_else_can_change(file: Path) -> None:
    with start(file) as server:
        port = amqps_port(server)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", port), 20) as plain, context.wrap_socket(plain) as open_before:
            assert served_serial(port) == 1
            certificate(file.parent, 2)
            change(file, ('log_level = "info"', 'log_level = "debug"'), ("max_queues = 100", "max_queues = 200"))
            server.signal(signal.SIGHUP)
            eventually("a reload in the log", log_has(server, "reloaded: changed: log_level"))
            assert "needs a restart: max_queues" in server.log()
            assert served_serial(port) == 2
            open_before.sendall(b"AMQP\x00\x00\x09\x01")
            assert open_before.recv(1) == b"\x01", "a connection from before the reload goes on"
        assert server.stop() == 0


def test_a_broken_file_is_refused_as_a_whole(file: Path) -> None:
    with start(file) as server:
        certificate(file.parent, 2)
        change(file, ('log_level = "info"', 'log_level = "debug"'), ("max_queues = 100", 'max_queues = "many"'))
        server.signal(signal.SIGHUP)
        eventually("a refusal in the log", log_has(server, "the settings were not reloaded, those in force stay"))
        assert "max_queues must be a whole number" in server.log()
        assert served_serial(amqps_port(server)) == 1
        refused = httpx.post(f"http://127.0.0.1:{server.port}/config/reload")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "config_invalid")
        change(file, ('max_queues = "many"', "max_queues = 100"))
        (file.parent / "server.pem").write_text("no certificate")
        refused = httpx.post(f"http://127.0.0.1:{server.port}/config/reload")
        assert refused.status_code == 409 and "tls_cert" in refused.json()["error"]["message"]
        assert served_serial(amqps_port(server)) == 1
        assert " DEBUG " not in server.log()


def test_the_command_tells_what_changed_and_what_waits_for_a_restart(file: Path) -> None:
    with start(file, "--shutdown-grace-seconds", "7") as server:
        change(file, ('log_level = "info"', 'log_level = "warning"'), ("max_queues = 100", "max_queues = 200"))
        command = [sys.executable, "-m", "laneway", "config", "reload", "--url", f"http://127.0.0.1:{server.port}"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert told.stdout.splitlines() == [
            "changed: log_level",
            "read again: tls_cert, tls_key",
            "needs a restart: max_queues",
        ], told
        again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
        assert json.loads(again.stdout) == {
            "changed": [],
            "read_again": ["tls_cert", "tls_key"],
            "needs_restart": ["max_queues"],
        }


def test_proxies_are_trusted_and_history_is_kept_as_the_file_says_now(file: Path) -> None:
    with start(file) as server:
        url = f"http://127.0.0.1:{server.port}"
        said = {"X-Forwarded-For": "127.0.0.1"}
        assert httpx.get(f"{url}/queues", headers=said).status_code == 401
        file.write_text(file.read_text() + 'trusted_proxies = "127.0.0.1"\nhistory_seconds = 60\n')
        reloaded = httpx.post(f"{url}/config/reload").json()
        assert sorted(reloaded["changed"]) == ["history_seconds", "trusted_proxies"]
        assert httpx.get(f"{url}/queues", headers=said).status_code == 200


def test_proxies_are_not_taken_from_the_proxy_protocol(tmp_path: Path) -> None:
    """What a start refuses is refused here: their headers would be read as what clients say."""
    file = tmp_path / "laneway.toml"
    file.write_text('proxy_protocol = "amqp"\ntrusted_proxies = "127.0.0.1"\n')
    with Server(tmp_path / "data", "--config", str(file)) as server:
        file.write_text('proxy_protocol = "amqp"\n')
        refused = httpx.post(f"http://127.0.0.1:{server.port}/config/reload", headers={"X-Forwarded-For": "127.0.0.1"})
        assert refused.status_code == 409 and refused.json()["error"]["field"] == "trusted_proxies"


def test_only_administrators_reload(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as http:
        assert http.put("/accounts/ann", json={"password": "pw", "roles": ["admin"]}).status_code == 201
        assert http.put("/accounts/bob", json={"password": "pw"}, auth=("ann", "pw")).status_code == 201
        assert http.post("/config/reload", auth=("bob", "pw")).status_code == 403
        assert http.post("/config/reload", auth=("ann", "pw")).json() == {
            "changed": [],
            "read_again": [],
            "needs_restart": [],
        }


def test_every_line_of_a_json_log_is_json_with_milliseconds(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--log-format", "json") as server:
        told = json.loads(server.first_line)
        assert told["message"].startswith("Laneway serves http://127.0.0.1:")
        server.signal(signal.SIGHUP)
        eventually("a reload in the log", log_has(server, "reloaded"))
        server.stop()
        for line in (server.first_line, *server.log().splitlines()):
            told = json.loads(line)
            assert re.search(r"T\d\d:\d\d:\d\d\.\d{3}\+00:00$", told["at"]), told
            datetime.fromisoformat(told["at"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--max-queues", "many"), "max_queues must be a whole number"),
        (("--http", "192.0.2.1:1"), "which others can reach"),
        (("--data", "/dev/null/x"), "cannot use the data folder"),
    ],
)
def test_a_failed_start_is_json_too(tmp_path: Path, flags: tuple[str, str], says: str) -> None:
    started = [sys.executable, "-m", "laneway", "serve", "--log-format", "json", "--amqp", "off"]
    done = subprocess.run([*started, "--data", str(tmp_path / "data"), *flags], capture_output=True, timeout=60)
    assert done.returncode == 1 and done.stdout == b""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["level"] == "critical" and says in lines[-1]["message"], lines


def test_warnings_and_errors_that_nobody_caught_are_json_too() -> None:
    program = (
        "import threading, warnings; from laneway.logs import set_up_logging; set_up_logging('info', 'json')\n"
        "warnings.warn('take care')\n"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()\n"
        "raise ValueError('lost\\nin two lines')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    warned, thread, error = (json.loads(line) for line in done.stderr.splitlines())
    assert (warned["level"], warned["logger"]) == ("warning", "py.warnings") and "take care" in warned["message"]
    assert "ZeroDivisionError" in thread["exception"]
    assert "ValueError: lost\nin two lines" in error["exception"]
    assert done.returncode == 1


# --- without a server


def _refuse() -> None:
    raise AssertionError("nothing is put in force")


def test_nothing_is_put_in_force_if_one_part_refuses() -> None:
    def refusing(config: Config) -> Callable[..., object]:
        raise ConfigInvalid("no", field="log_format")

    fresh = load_config({"log_level": "debug", "log_format": "json"}, {})
    reloading = Reloading(load_config({}, {}), lambda: fresh)
    reloading.on(("log_level",), lambda config: _refuse)
    reloading.on(("log_format",), refusing)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid):
        reloading.reload()
    assert reloading.running.log_level == "info"


def test_what_needs_a_restart_is_named_again_until_there_is_one() -> None:
    seen: list[Config] = []
    fresh = load_config({"log_level": "debug", "max_queues": "7"}, {})
    reloading = Reloading(load_config({}, {}), lambda: fresh)
    reloading.on(("log_level",), lambda config: lambda: seen.append(config))
    assert reloading.reload() == Reloaded(["log_level"], ["max_queues"], [])
    assert seen[0].max_queues == load_config({}, {}).max_queues, "parts see no mixture"
    assert reloading.reload() == Reloaded([], ["max_queues"], [])
