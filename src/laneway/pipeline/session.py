"""A Spark session with what the data source and the jobs rely on, and a plain word when Spark cannot run here."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from laneway.errors import InvalidInput, PipelineUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION = 17
INSTALL = "pip install 'laneway[pipeline]'"

MASTERS = r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn|sc://.+"

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

#: The same for a Spark on this machine: nobody else has to reach it, and its start is nobody's concern.
USUAL_HERE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {UNCHECKED}",
    "spark.executor.extraJavaOptions": UNCHECKED,
}


def session(master: str | None = None, app: str = "laneway", **conf: str) -> SparkSession:
    """The session on `master`, with the data source registered. Dots in names of `conf` may be written as `__`.

    master: local[N] · local-cluster[…] · spark://… · k8s://… · yarn · sc://… (Spark Connect). None: the one that
    spark-submit chose, else all cores of this machine.
    """
    check_master(master)
    check_available(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        if master is not None:
            builder = builder.master(master)
        elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which has a master of its own
            builder = builder.master("local[*]")
        if master is None or master.startswith("local"):
            # Python workers on this machine are this Python, with the packages it has: not whatever python3 is.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            here = {**USUAL, **USUAL_HERE, "spark.sql.shuffle.partitions": str(_cores(master))}
            for name, value in here.items():
                builder = builder.config(name, value)
        else:
            for name, value in USUAL.items():
                builder = builder.config(name, value)
    for name, value in {**{name.replace("__", "."): value for name, value in conf.items()}, **NEEDED}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("laneway")` known to the session. Spark finds it unregistered only where it is installed as a
    package, not in a zip that travels with the job."""
    if importlib.util.find_spec("laneway.pipeline.datasource") is not None:
        spark.dataSource.register(importlib.import_module("laneway.pipeline.datasource").LanewayDataSource)


def check_master(master: str | None) -> None:
    if master is not None and not re.fullmatch(MASTERS, master):
        raise InvalidInput(
            f"{master!r} is no Spark: give local[N], local-cluster[workers,cores,MiB], spark://host:port, k8s://…, "
            "yarn or sc://host:port",
            field="master",
        )


def check_available(master: str | None = None) -> None:
    """Raise PipelineUnavailable, saying what to install, if a job cannot run here."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineUnavailable(f"the pipeline needs {', '.join(missing)}: {INSTALL}, and Java {JAVA_VERSION}")
    if master is not None and master.startswith("sc://"):
        if importlib.util.find_spec("grpc") is None:
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


def _cores(master: str | None) -> int:
    """As many shuffle partitions as can run at once: a local job gains nothing from Spark's usual 200."""
    found = re.fullmatch(r"local\[(\d+)(?:,.*)?\]", master or "")
    if found:
        return int(found[1])
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master or "")
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    return 1 if master == "local" else os.cpu_count() or 1
