"""Real PostgreSQL servers for tests: each in a temporary folder, on a free port, killed and started at will."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.crash.server import eventually

#: A test kills processes, never the machine: what the system has in memory stays.
SETTINGS = (
    *("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=60", "listen_addresses=127.0.0.1"),
    *("wal_level=replica", "max_wal_senders=4", "hot_standby=on", "wal_keep_size=256MB", "log_min_messages=fatal"),
)


def program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = next((str(folder / name) for folder in reversed(folders) if (folder / name).exists()), shutil.which(name))
    if found is None:
        raise AssertionError(f"PostgreSQL's {name} was not found; tools/services.sh test installs it")
    return found


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


def run(*command: str) -> None:
    said = subprocess.run(command, user=_user(), cwd="/", capture_output=True, text=True, check=False)
    assert said.returncode == 0, f"{command[0]} failed: {said.stderr or said.stdout}"


class PostgresServer:
    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="laneway-postgres-"))
        self.data = self.folder / "data"
        if (user := _user()) is not None:
            shutil.chown(self.folder, user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.settings = list(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._database_count = 0

    def make(self) -> None:
        run(program("initdb"), "-D", str(self.data), "-U", "laneway", "-A", "trust", "-E", "UTF8", "-N")

    def make_standby_of(self, primary: PostgresServer, name: str) -> None:
        where = f"host=127.0.0.1 port={primary.port} user=laneway application_name={name}"
        run(program("pg_basebackup"), "-D", str(self.data), "-d", where, "-R", "-c", "fast", "-N")

    def start(self) -> None:
        settings = [part for setting in (*SETTINGS, *self.settings) for part in ("-c", setting)]
        where = ["-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), *where, *settings], user=_user(), cwd="/", stdout=log, stderr=log
            )
        eventually("PostgreSQL answers", self._answers, within_s=60)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://laneway@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        self._database_count += 1
        name = f"laneway{self._database_count}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(
        self, statement: str, values: Sequence[object] = (), *, database: str = "postgres"
    ) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As if the machine had gone: nobody writes anything any more. Its backends end with it."""
        assert self._process is not None
        backends = self._children()
        for pid in (self._process.pid, *backends):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()
        eventually("its backends ended", lambda: not any(map(_runs, backends)))

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # whoever is connected
            self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Wire:
    """Stands between a client and a server, and cuts the connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.answers_are_swallowed = False  # the next answer ends the connection instead of going through it
        self.requests_are_swallowed = False  # the same of the next request
        self.cut_count = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server, "requests"), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, "answers"), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, what: str) -> None:
        try:
            while data := source.recv(1 << 16):
                if getattr(self, f"{what}_are_swallowed"):
                    setattr(self, f"{what}_are_swallowed", False)
                    self.cut_count += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            one.close()
