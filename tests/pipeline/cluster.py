"""A real Spark cluster on this machine, of what PySpark's wheel brings: a Master, two Workers of a core each, and a
server of Spark Connect on top."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyspark

from tests.pipeline.drivers import QUICK, QUICK_JVM, environment

HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0
WORKERS = 2
EXECUTOR = {"spark.executor.memory": "600m", "spark.executor.extraJavaOptions": QUICK_JVM}


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = self.connect_url = ""

    def __enter__(self) -> Cluster:
        try:
            here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            log = self._start("master", "spark-class", "org.apache.spark.deploy.master.Master", *here)
            self.url = self._await("master", log, r"Starting Spark master at (spark://\S+)")
            for number in range(WORKERS):
                own = ("--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / f"work-{number}"))
                log = self._start(
                    f"worker-{number}", "spark-class", "org.apache.spark.deploy.worker.Worker", *here, *own, self.url
                )
                self._await(f"worker-{number}", log, r"Successfully registered with master (\S+)")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def connect(self) -> str:
        """The address of a server of Spark Connect that runs on the cluster."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        confs = {
            **QUICK,
            **EXECUTOR,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "America/New_York",  # which is the server's own: the jobs bring theirs
        }
        defaults = self._folder / "connect.conf"
        defaults.write_text("".join(f"{name} {value}\n" for name, value in confs.items()))
        what = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect")
        where = ("--master", self.url, "--properties-file", str(defaults))
        log = self._start("connect", "spark-submit", *what, *where, "spark-internal")
        self._await("connect", log, "", lambda: _answers(port))
        return f"sc://127.0.0.1:{port}"

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in reversed(self._running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, program: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        memory = "700m" if name == "connect" else "150m"
        env = {**cluster_environment(), "SPARK_DAEMON_MEMORY": memory, "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(HOME / "bin" / program), *arguments], env=env, stdout=file, stderr=subprocess.STDOUT
            )
        self._running.append(process)
        return log

    def _await(self, name: str, log: Path, words: str, is_up: Callable[[], bool] = lambda: True) -> str:
        process, end = self._running[-1], time.monotonic() + START_SECONDS
        while True:
            said = log.read_text(errors="replace")
            if (found := re.search(words, said)) and is_up():
                return found[found.re.groups]
            assert process.poll() is None, f"{name} ended by itself:\n{said[-3000:]}"
            assert time.monotonic() < end, f"{name} did not start:\n{said[-3000:]}"
            time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def cluster_environment() -> dict[str, str]:
    return {
        **environment(),
        "SPARK_HOME": str(HOME),
        "SPARK_CONF_DIR": os.devnull,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
