"""Starts and stops what is measured: each a process of its own on the server core, its data in a temporary folder."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from benchmarks.http_load import ask
from benchmarks.load import LoadFailed

ROOT = Path(__file__).parent.parent
AGAINST = "against"  # what another version of Laneway is called in reports
_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A process that listens on a port of this machine. Its output goes to a file, shown when it fails."""

    name = "server"

    def __init__(self, folder: Path, cores: frozenset[int], port: int | None = None) -> None:
        self.folder = folder
        self.cores = cores
        self.port = port or free_port()
        self.address = ("127.0.0.1", self.port)
        self.log = folder.parent / f"{folder.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    @property
    def user(self) -> str | None:
        """Whom to run as; None is whoever runs the benchmark."""
        return None

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LoadFailed(f"{self.name} is not running")
        return self._process.pid

    def start(self, timeout_seconds: float = _START_SECONDS) -> float:
        """Start and wait until it is ready; how many seconds that took."""
        began = time.perf_counter()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                preexec_fn=self._before_exec,
            )
        self._wait(self.is_ready, timeout_seconds, "did not become ready")
        return time.perf_counter() - began

    def _before_exec(self) -> None:
        os.sched_setaffinity(0, self.cores)
        # A benchmark that is killed takes its servers with it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def stop(self, signal_number: int = signal.SIGTERM, timeout_seconds: float = _START_SECONDS) -> float:
        """Stop and wait until it has ended; how many seconds that took."""
        process = self._process
        if process is None:
            return 0.0
        began = time.perf_counter()
        process.send_signal(signal_number)
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise LoadFailed(f"{self.name} did not stop within {timeout_seconds:.0f} s{self.last_words()}") from None
        finally:
            self._process = None
        return time.perf_counter() - began

    def _wait(self, condition: Callable[[], bool], timeout_seconds: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if self._process is not None and self._process.poll() is not None:
                raise LoadFailed(f"{self.name} ended with {self._process.returncode}{self.last_words()}")
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self.name} {complaint} within {timeout_seconds:.0f} s{self.last_words()}")
            time.sleep(0.005)

    def last_words(self) -> str:
        """The end of what it wrote, to be put behind a complaint."""
        words = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return f"; it said:\n{words}" if words else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LanewayServer(Server):
    name = "Laneway"

    def __init__(
        self,
        folder: Path,
        cores: frozenset[int],
        *,
        durability: str = "commit",
        amqp: bool = False,
        checkout: Path | None = None,
        processes: int = 1,
        partitions: int = 1,
    ) -> None:
        """`checkout` is where another version of Laneway is taken from."""
        super().__init__(folder, cores)
        self.durability = durability
        self.checkout = checkout
        self._several = []
        if (processes, partitions) != (1, 1):
            self._several = ["--processes", str(processes), "--partitions", str(partitions)]
            self.name = f"Laneway, {processes} processes"
        if checkout is not None:
            self.name = AGAINST
        self.amqp_address = ("127.0.0.1", free_port()) if amqp else None

    def command(self) -> Sequence[str]:
        program = Path(sys.executable).parent / "laneway"
        where = ["--data", str(self.folder), "--http", f"127.0.0.1:{self.port}"]
        where += ["--amqp", "off" if self.amqp_address is None else "{}:{}".format(*self.amqp_address)]
        return [str(program), "serve", *where, "--durability", self.durability, *self._several]

    def environment(self) -> dict[str, str]:
        if self.checkout is None:
            return super().environment()
        return {**super().environment(), "PYTHONPATH": str(self.checkout / "src")}

    def is_ready(self) -> bool:
        try:
            ask(self.address, "GET", "/readyz")
        except (OSError, LoadFailed):
            return False
        return self.amqp_address is None or _is_open(self.amqp_address[1])


class StarletteEcho(Server):
    name = "Starlette"

    def command(self) -> Sequence[str]:
        options = "--loop uvloop --http httptools --no-access-log --log-level warning --workers 1".split()
        return [sys.executable, "-m", "uvicorn", "benchmarks.starlette_echo:app", "--port", str(self.port), *options]

    def is_ready(self) -> bool:
        try:
            return ask(self.address, "POST", "/queues/bench/messages", {"ready": True}) == {"ready": True}
        except OSError:
            return False


class MotoServer(Server):
    """moto's SQS, which keeps its queues in memory: what tests of SQS code usually run against."""

    name = "moto"

    def command(self) -> Sequence[str]:
        options = "--interface asgi3 --loop uvloop --http httptools --no-access-log --log-level warning".split()
        return [sys.executable, "-m", "uvicorn", "benchmarks.moto_app:app", "--port", str(self.port), *options]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONWARNINGS": "ignore"}

    def is_ready(self) -> bool:
        return _is_open(self.port)


class SinkServer(Server):
    """benchmarks/amqp_sink.py: what the load generator reaches against it is the generator's own ceiling."""

    name = "sink"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.amqp_sink", str(self.port)]

    def is_ready(self) -> bool:
        return _is_open(self.port)


class NameServer(Server):
    """Erlang's epmd, which RabbitMQ needs: left to itself it would start one that stays behind."""

    name = "epmd"

    def command(self) -> Sequence[str]:
        return [_program("epmd"), "-port", str(self.port), "-address", "127.0.0.1"]

    def is_ready(self) -> bool:
        return _is_open(self.port)


class RabbitServer(Server):
    """Debian's RabbitMQ in a folder of its own, as it comes: no setting that changes how it works."""

    name = "RabbitMQ"

    def __init__(self, folder: Path, cores: frozenset[int]) -> None:
        super().__init__(folder, cores)
        self.names = NameServer(folder.parent / f"{folder.name}-epmd", cores)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.names.port),
            "RABBITMQ_NODENAME": f"laneway-bench-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RUNNING_UNDER_SYSTEMD": "true",  # its script then becomes the server instead of watching over it
        }

    def start(self, timeout_seconds: float = _START_SECONDS) -> float:
        self.folder.mkdir()
        # Every message published in a run may be on its disk at once; it must not stop for want of room.
        (self.folder / "rabbitmq.conf").write_text("disk_free_limit.absolute = 50MB\nlog.console.level = warning\n")
        (self.folder / "enabled_plugins").write_text("[].\n")
        self.names.start()
        return super().start(timeout_seconds)

    def stop(self, signal_number: int = signal.SIGTERM, timeout_seconds: float = _START_SECONDS) -> float:
        try:
            return super().stop(signal_number, timeout_seconds)
        finally:
            self.names.stop()

    def command(self) -> Sequence[str]:
        # The one in PATH is Debian's wrapper, which changes the user.
        direct = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        return [str(direct) if direct.exists() else _program("rabbitmq-server")]

    def is_ready(self) -> bool:
        return _is_open(self.port)


class PostgresServer(Server):
    """Debian's PostgreSQL in a folder of its own, durable as it comes, with memory and WAL room fit for a benchmark."""

    name = "PostgreSQL"

    SETTINGS = (
        "fsync=on",
        "synchronous_commit=on",
        "full_page_writes=on",
        "shared_buffers=1GB",
        "max_wal_size=8GB",
        "checkpoint_timeout=15min",
        "wal_buffers=64MB",
        "jit=off",
        "autovacuum_naptime=1s",
        "max_connections=100",
        "listen_addresses=127.0.0.1",
    )

    @property
    def user(self) -> str | None:
        # PostgreSQL refuses to run as root.
        if os.geteuid() != 0:
            return None
        known = {entry.pw_name for entry in pwd.getpwall()}
        return "postgres" if "postgres" in known else "nobody"

    def prepare(self) -> None:
        self.folder.mkdir()
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        said = subprocess.run(
            [_postgres_program("initdb"), "-D", str(self.folder), "-U", "laneway", "-A", "trust", "-E", "UTF8", "-N"],
            user=self.user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode:
            raise LoadFailed(f"initdb failed: {said.stderr or said.stdout}")

    def start(self, timeout_seconds: float = _START_SECONDS) -> float:
        self.prepare()
        return super().start(timeout_seconds)

    def stop(self, signal_number: int = signal.SIGINT, timeout_seconds: float = _START_SECONDS) -> float:
        return super().stop(signal_number, timeout_seconds)  # SIGINT is its fast shutdown

    def command(self) -> Sequence[str]:
        settings = [part for setting in self.SETTINGS for part in ("-c", setting)]
        where = ["-D", str(self.folder), "-p", str(self.port), "-k", str(self.folder)]
        return [_postgres_program("postgres"), *where, *settings]

    def is_ready(self) -> bool:
        said = subprocess.run(
            [_postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False, cwd="/"
        )
        return said.returncode == 0


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise LoadFailed(f"{name} was not found; tools/services.sh bench installs it")
    return program


def _postgres_program(name: str) -> str:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = next((folder / name for folder in reversed(versions) if (folder / name).exists()), None)
    program = str(found) if found else shutil.which(name)
    if program is None:
        raise LoadFailed(f"PostgreSQL's {name} was not found; tools/services.sh bench installs it")
    return program
