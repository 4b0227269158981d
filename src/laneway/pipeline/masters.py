"""Which Spark: what a master may say, whether somebody answers there, and how finely to shuffle on it.

What Spark itself does about a wrong address is to try for minutes and to end in a hundred lines, so addresses are tried
before it starts.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laneway.errors import InvalidInput, PipelineUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTERS = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?"
    r"|local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]"
    r"|spark://[^\s/]+|k8s://\S+|yarn|sc://\S+"
)
ONE_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::(?P<port>\d{1,5}))?")

CONNECT_PORT = 15002
CONNECTING_SECONDS = 5.0
GREETING_SECONDS = 10.0

#: A cluster may start its executors one by one. The first one is waited for so long, and then no more may come for
#: so long before the cores are counted.
EXECUTOR_SECONDS = 120.0
SETTLED_SECONDS = 1.0

#: Tasks of a shuffle for each core: some slack where one takes longer. Adaptive execution joins small ones.
TASKS_PER_CORE = 2
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SHUFFLE_PARTITIONS_OF_SPARK = "200"


def is_connect(master: str | None) -> bool:
    return master is not None and master.startswith("sc://")


def is_here(master: str | None) -> bool:
    """Whether Spark runs on this machine, started by us."""
    return master is None or master.startswith("local")


def check_master(master: str | None) -> None:
    """Raise InvalidInput unless Spark can make sense of it."""
    if master is None:
        return
    if not MASTERS.fullmatch(master):
        raise InvalidInput(
            f"{master!r} is no Spark: give local[N], local-cluster[workers,cores,MiB], spark://host:port, k8s://…, "
            "yarn or sc://host:port",
            field="master",
        )
    addresses(master)


def addresses(master: str) -> list[tuple[str, int]]:
    """Where somebody must answer: one of these is enough."""
    kind, _, rest = master.partition("://")
    if kind == "spark":
        return [_address(master, one, None, "spark://host:port, usually port 7077") for one in rest.split(",")]
    if kind == "sc":
        return [_address(master, re.split(r"[/;]", rest)[0], CONNECT_PORT, "sc://host:port")]
    if kind == "k8s":
        scheme, host = re.fullmatch(r"(?:(https?)://)?(.*)", rest).groups()  # type: ignore[union-attr]
        port = 80 if scheme == "http" else 443
        return [_address(master, host.split("/")[0], port, "k8s://https://host:port")]
    return []


def _address(master: str, text: str, usual_port: int | None, form: str) -> tuple[str, int]:
    found = ONE_ADDRESS.fullmatch(text)
    port = int(found["port"]) if found and found["port"] else usual_port
    if not found or port is None or not 0 < port < 65_536:
        raise InvalidInput(f"{master!r} names no address: give {form}", field="master")
    return found["host"].strip("[]"), port


def check_reachable(master: str | None) -> None:
    """Raise PipelineUnavailable in a few seconds if nobody answers there."""
    if master is None:
        return
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise PipelineUnavailable("where YARN is stands in a folder that HADOOP_CONF_DIR names: set it")
    tried = addresses(master)
    if tried:
        _check_one_answers(master, tried)
    if is_connect(master):
        _check_greeting(master)


def _check_one_answers(master: str, tried: list[tuple[str, int]]) -> None:
    """In threads, because looking up a name has no time-out of its own."""
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def call(host: str, port: int) -> None:
        try:
            socket.create_connection((host, port), CONNECTING_SECONDS).close()
            answers.put(None)
        except socket.gaierror:
            answers.put(f"no host is called {host}")
        except TimeoutError:
            answers.put(f"{host} does not answer on port {port}")
        except OSError as error:
            answers.put(f"{host} port {port}: {error.strerror or error}")

    for host, port in tried:
        threading.Thread(target=call, args=(host, port), daemon=True).start()
    why, end = [], time.monotonic() + CONNECTING_SECONDS + 1
    for _ in tried:
        try:
            failure = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            failure = "no answer in time"
        if failure is None:
            return
        why.append(failure)
    raise PipelineUnavailable(f"there is no Spark at {master}: {'; '.join(dict.fromkeys(why))}")


def _check_greeting(master: str) -> None:
    """Whether a server of Spark Connect is behind the port: its client would try for many minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(master).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=GREETING_SECONDS)
    except grpc.FutureTimeoutError:
        raise PipelineUnavailable(
            f"what answers at {master} is no Spark Connect server: its usual port is {CONNECT_PORT}"
        ) from None
    finally:
        channel.close()


def has_grpc() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("grpc", "grpc_status", "zstandard"))


# --- how finely to shuffle


def fit_shuffles(spark: SparkSession, master: str | None, given: Mapping[str, str]) -> None:
    """As many shuffle partitions as the cores can use, in place of Spark's 200. Whoever set a number, here or in
    Spark's own configuration, keeps it; so does a cluster that has as many executors as it needs at any time."""
    if SHUFFLE_PARTITIONS in given or spark.conf.get(SHUFFLE_PARTITIONS) != SHUFFLE_PARTITIONS_OF_SPARK:
        return
    if is_connect(master):
        cores = _cores_behind(spark)
    else:
        conf = spark.sparkContext.getConf()
        is_set = conf.contains(SHUFFLE_PARTITIONS) or conf.get("spark.dynamicAllocation.enabled", "") == "true"
        if is_set:
            return
        if not is_here(master):
            await_executors(spark, master or "")
        cores = spark.sparkContext.defaultParallelism
    spark.conf.set(SHUFFLE_PARTITIONS, str(cores if is_here(master) else cores * TASKS_PER_CORE))


def _cores_behind(spark: SparkSession) -> int:
    """Of the Spark behind a Connect server, which tells it only by how it would cut a range of numbers."""
    from pyspark.sql import functions as F

    return spark.range(1 << 16).select(F.spark_partition_id().alias("part")).distinct().count()


def await_executors(spark: Any, master: str, seconds: float = EXECUTOR_SECONDS) -> None:
    """Wait until a cluster has given this application executors. Spark itself would wait for ever, without a word."""
    status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
    begun = time.monotonic()
    count, since = 0, begun
    while True:
        now, found = time.monotonic(), status().size() - 1  # the driver is one of them
        if found != count:
            count, since = found, now
        if count and now - since >= SETTLED_SECONDS:
            return
        if not count and now - begun >= seconds:
            raise PipelineUnavailable(
                f"{master} gave no executor within {seconds:.0f} seconds: its workers are gone or busy, or have less "
                "memory than spark.executor.memory asks for"
            )
        time.sleep(0.1)
