"""The first start in a container: everything comes from the environment, and the folder is empty."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pika
import pytest

from laneway.client import Client
from laneway.errors import ConfigInvalid
from laneway.first_admin import first_admin

SOURCE = Path(__file__).parent.parent.parent / "src"
PASSWORD = "a long secret"
EVERYWHERE = {
    "LANEWAY_HTTP": "0.0.0.0:0",
    "LANEWAY_AMQP": "0.0.0.0:0",
    "LANEWAY_PLAIN_BEYOND_LOOPBACK": "true",
}


def laneway(folder: Path, *arguments: str, code: int = 0, given: str = "", **env: str) -> str:
    """What a command says that sees no more of the environment than this."""
    done = subprocess.run(
        ["env", "-i", f"PYTHONPATH={SOURCE}", *(f"{name}={value}" for name, value in env.items()),
         sys.executable, "-m", "laneway", *arguments],
        cwd=folder, input=given, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Started:
    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self.url = f"http://127.0.0.1:{ports['http']}"


@contextmanager
def serving(folder: Path, **env: str) -> Iterator[Started]:
    """`laneway serve` without any flag, with this environment and nothing else of this one."""
    env = {"PYTHONPATH": str(SOURCE), "LANEWAY_DATA": str(folder / "data"), **env}
    log = folder / "log"
    with log.open("a") as out:
        process = subprocess.Popen(
            [
                "env",
                "-i",
                *(f"{name}={value}" for name, value in env.items()),
                sys.executable,
                "-m",
                "laneway",
                "serve",
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
        )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], 30)
        line = process.stdout.readline() if readable else ""
        found = {name: int(port) for name, port in re.findall(r"(\w+)://[\d.]+:(\d+)", line)}
        assert "http" in found, line + log.read_text()
        yield Started(found)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


def name_of(started: Started, name: str, password: str) -> str | int:
    answer = httpx.get(f"{started.url}/whoami", auth=(name, password), timeout=30)
    return str(answer.json()["name"]) if answer.status_code == 200 else answer.status_code


def test_server_in_a_container_is_right_at_once(tmp_path: Path) -> None:
    admin = {"LANEWAY_ADMIN_USER": "root", "LANEWAY_ADMIN_PASSWORD": PASSWORD}
    with serving(tmp_path, **EVERYWHERE, **admin) as started:
        with Client(started.url, user="root", password=PASSWORD) as client:
            assert [one["name"] for one in client.accounts()] == ["root"]
            assert client.whoami()["roles"] == ["admin"]
        assert name_of(started, "guest", "guest") == 401
        credentials = pika.PlainCredentials("root", PASSWORD)
        pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", started.ports["amqp"], credentials=credentials)
        ).close()
    assert PASSWORD not in (tmp_path / "log").read_text()
    assert "created the first account, 'root'" in (tmp_path / "log").read_text()


def test_environment_counts_on_the_first_start_only(tmp_path: Path) -> None:
    """A password that was changed since is not changed back by a restart."""
    admin = {"LANEWAY_ADMIN_USER": "root", "LANEWAY_ADMIN_PASSWORD": PASSWORD}
    with (
        serving(tmp_path, **EVERYWHERE, **admin) as started,
        Client(started.url, user="root", password=PASSWORD) as root,
    ):
        root.put_account("root", password="another")
    admin = {"LANEWAY_ADMIN_USER": "intruder", "LANEWAY_ADMIN_PASSWORD": PASSWORD}
    with serving(tmp_path, **EVERYWHERE, **admin) as started:
        assert name_of(started, "root", "another") == "root"
        assert name_of(started, "root", PASSWORD) == 401
        assert name_of(started, "intruder", PASSWORD) == 401


def test_name_and_password_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("root\n")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    files = {
        "LANEWAY_ADMIN_USER_FILE": str(tmp_path / "name"),
        "LANEWAY_ADMIN_PASSWORD_FILE": str(tmp_path / "password"),
    }
    with serving(tmp_path, **EVERYWHERE, **files) as started:
        assert name_of(started, "root", PASSWORD) == "root"


def test_without_an_administrator_the_ways_to_one_are_named(tmp_path: Path) -> None:
    said = laneway(tmp_path, "serve", code=1, **EVERYWHERE)
    for words in ("LANEWAY_ADMIN_USER", "LANEWAY_ADMIN_PASSWORD", "laneway account create", "--data"):
        assert words in said


def test_password_is_not_among_the_settings_shown(tmp_path: Path) -> None:
    admin = {"LANEWAY_ADMIN_USER": "root", "LANEWAY_ADMIN_PASSWORD": PASSWORD}
    for more in ((), ("--json",)):
        assert PASSWORD not in laneway(tmp_path, "config", *more, **admin)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"LANEWAY_ADMIN_USER": "root"}, "LANEWAY_ADMIN_PASSWORD (or LANEWAY_ADMIN_PASSWORD_FILE) is missing"),
        ({"LANEWAY_ADMIN_PASSWORD": PASSWORD}, "LANEWAY_ADMIN_USER (or LANEWAY_ADMIN_USER_FILE) is missing"),
        ({"LANEWAY_ADMIN_USER": "guest", "LANEWAY_ADMIN_PASSWORD": PASSWORD}, "another name than guest"),
        ({"LANEWAY_ADMIN_USER": "a", "LANEWAY_ADMIN_USER_FILE": "/b"}, "give one"),
        ({"LANEWAY_ADMIN_USER_FILE": "/nowhere/at/all"}, "cannot be read: No such file"),
        ({"LANEWAY_ADMIN_USER_FILE": "/dev/null"}, "empty"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_and_no_password_shown(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        first_admin(env)
    assert words in refused.value.message and PASSWORD not in refused.value.message


def test_name_that_no_account_can_have_stops_the_start(tmp_path: Path) -> None:
    env = {**EVERYWHERE, "LANEWAY_ADMIN_USER": "a:b", "LANEWAY_ADMIN_PASSWORD": PASSWORD}
    said = laneway(tmp_path, "serve", code=1, **env)
    assert "LANEWAY_ADMIN_USER" in said and "colon" in said and PASSWORD not in said


def test_empty_variables_count_as_not_set() -> None:
    assert first_admin({"LANEWAY_ADMIN_USER": "", "LANEWAY_ADMIN_PASSWORD": ""}) is None
    assert PASSWORD not in repr(first_admin({"LANEWAY_ADMIN_USER": "root", "LANEWAY_ADMIN_PASSWORD": PASSWORD}))


# --- laneway account create --data


def test_account_is_created_in_a_folder_that_no_server_runs_on(tmp_path: Path) -> None:
    new = ("account", "create", "ann", "--role", "admin", "--new-password", "-", "--data", "data")
    assert "created account ann" in laneway(tmp_path, *new, given=f"{PASSWORD}\n")
    said = laneway(tmp_path, *new, code=1, given="other")
    assert "there is an account 'ann' already" in said
    shop = ("account", "create", "shop", "--no-password", "--write", "orders.*", "--data", "data", "--json")
    assert '"permissions":[{"queue":"orders.*"' in laneway(tmp_path, *shop)
    with serving(tmp_path, **EVERYWHERE) as started:
        assert name_of(started, "ann", PASSWORD) == "ann"
        assert name_of(started, "ann", "other") == 401


def test_folder_that_a_server_runs_on_is_left_alone(tmp_path: Path) -> None:
    here = {"LANEWAY_HTTP": "127.0.0.1:0", "LANEWAY_AMQP": "off"}
    new = ("account", "create", "ann", "--role", "admin", "--new-password", "pw")
    with serving(tmp_path, **here) as started:
        said = laneway(tmp_path, *new, "--data", "data", code=1)
        assert "a server runs on data" in said and "leave --data out" in said
        laneway(tmp_path, *new, "--url", started.url)
        assert name_of(started, "ann", "pw") == "ann"
    assert "contradict" in laneway(tmp_path, *new, "--data", "data", "--url", "http://localhost", code=2)
    assert os.path.isdir(tmp_path / "data")
