"""A Spark session with what the data source and the jobs rely on, and a plain word when Spark cannot run here."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from laneway.errors import LanewayError, PipelineUnavailable
from laneway.pipeline import masters
from laneway.pipeline.masters import check_master, check_reachable, is_connect, is_here
from laneway.pipeline.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION = 17
INSTALL = "pip install 'laneway[pipeline]'"

#: How long a cluster may take to take us in, by the beginning of its master; YARN lets applications queue. What has
#: not begun by then is ended: Spark's own limits are minutes, or none.
START_SECONDS = {"spark://": 45.0, "k8s://": 60.0, "yarn": 600.0}

#: What the jobs rely on, whatever Spark they run on. Spark 4.3 keeps what was pushed down to a source in Python with
#: the table, not with the query: a table that is read twice, with two filters or once without one, is read with the
#: last filter both times, and rows are missing without a word. So filters stay Spark's, and jobs say with options of
#: the source what they want read. Times are UTC, and written so that every reader of Parquet knows it; Arrow is used on
#: the way to and from Python.
NEEDED = {
    "spark.sql.python.filterPushdown.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

#: What suits a command that runs a job and ends; anything given wins over it.
USUAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

LOGGING = Path(__file__).with_name("log4j2.properties")

#: Arrow in Java checks the bounds of every access unless told otherwise, which costs about a tenth of the JVM's time
#: when a journal is read. Only where we start the JVM: elsewhere its options are somebody's already.
UNCHECKED = "-Darrow.enable_unsafe_memory_access=true"

#: Java's compiler and its default garbage collector work beside the tasks and take a third of the CPU time of a short
#: job. So methods are compiled later, and garbage is collected by a collector that slows no write to memory down.
#: docs/lab/pipeline.md has the figures.
BRIEF = "-XX:CompileThresholdScaling=4 -XX:+UseParallelGC"

#: The same for a Spark on this machine: nobody else has to reach it, and its start is nobody's concern.
USUAL_HERE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {UNCHECKED} {BRIEF}",
    "spark.executor.extraJavaOptions": UNCHECKED,
}


def session(master: str | None = None, app: str = "laneway", **conf: str) -> SparkSession:
    """The session on `master`, with the data source registered. Dots in names of `conf` may be written as `__`.

    master: local[N] · local-cluster[…] · spark://… · k8s://… · yarn · sc://… (Spark Connect). None: the one that
    spark-submit chose, else all cores of this machine.
    """
    check_master(master)
    check_available(master)
    check_reachable(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    if master is not None and is_connect(master):
        builder = builder.remote(master)
    else:
        if master is not None:
            builder = builder.master(master)
        elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which has a master of its own
            builder = builder.master("local[*]")
        usual = USUAL
        if is_here(master):
            # Python workers on this machine are this Python, with the packages it has: not whatever python3 is.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            usual = {**USUAL, **USUAL_HERE}
        for name, value in usual.items():
            builder = builder.config(name, value)
    given = {name.replace("__", "."): value for name, value in conf.items()}
    for name, value in {**given, **NEEDED}.items():
        builder = builder.config(name, value)
    with _within_its_time(master):
        spark = builder.getOrCreate()
    try:
        masters.fit_shuffles(spark, master, given)
        register(spark)
    except BaseException:
        spark.stop()
        raise
    return spark


@contextmanager
def _within_its_time(master: str | None) -> Iterator[None]:
    """End a start that takes too long, and say in a line why there is no Spark."""
    from pyspark.core.context import SparkContext

    limit = next((seconds for kind, seconds in START_SECONDS.items() if (master or "").startswith(kind)), None)
    expired = threading.Event()

    def end() -> None:
        expired.set()
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()

    timer = threading.Timer(limit, end) if limit is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    except LanewayError:
        raise
    except Exception as error:
        if expired.is_set():
            SparkContext._gateway = SparkContext._jvm = None  # it was ended: the next session starts another
            why = f"it did not take us in within {limit:.0f} seconds. Is it of Spark's version, and not its web page?"
        else:
            why = reason(str(error))
        raise PipelineUnavailable(f"there is no Spark at {master or 'this machine'}: {why}") from error
    finally:
        if timer is not None:
            timer.cancel()


def register(spark: SparkSession) -> None:
    """Make `format("laneway")` known to the session. Spark finds it unregistered only where it is installed as a
    package, not in a zip that travels with the job."""
    if importlib.util.find_spec("laneway.pipeline.datasource") is not None:
        spark.dataSource.register(importlib.import_module("laneway.pipeline.datasource").LanewayDataSource)


def check_available(master: str | None = None) -> None:
    """Raise PipelineUnavailable, saying what to install, if a job cannot run here."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineUnavailable(f"the pipeline needs {', '.join(missing)}: {INSTALL}, and Java {JAVA_VERSION}")
    if is_connect(master):
        if not masters.has_grpc():
            raise PipelineUnavailable("Spark Connect needs more of PySpark: pip install 'pyspark[connect]'")
        return  # the JVM is on the other side
    check_java()


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    wanted = f"Spark needs Java {JAVA_VERSION} or newer"
    advice = "install it (Debian, Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        where = f"there is none in JAVA_HOME={home}" if home else "there is no java on the PATH"
        raise PipelineUnavailable(f"{wanted} and {where}: {advice}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineUnavailable(f"{wanted}, and {java} does not run ({error}): {advice}") from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return  # a Java that says its version in other words is Spark's to judge
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if version < JAVA_VERSION:
        raise PipelineUnavailable(f"{wanted} and {java} is Java {version}: {advice}")
