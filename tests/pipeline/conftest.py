"""One Spark session for all tests of the pipeline: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from laneway.pipeline.session import LOGGING, session
from tests.pipeline.events import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

MakeEvents = Callable[..., "DataFrame"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that asks for Spark waits for its start, and compiles what the others find compiled."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    running = session(
        "local[1]",
        "laneway-tests",
        **{
            "spark.sql.shuffle.partitions": "1",
            # A few rows do not pay for code made and compiled for them: so queries take a fifth of the time.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.memory": "1g",
            # Plans are many and data is small: code that is compiled quickly beats code that runs quickly.
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {QUICK}",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        },
    )
    yield running
    running.stop()


@pytest.fixture
def make_events(spark: SparkSession) -> MakeEvents:
    """make_events([row(0, "published", 1), row(2, "leased", 1), …]) is an events table (tests/pipeline/events.py)."""

    def make(rows: list[dict[str, object]], *, body: bool = False, attributes: bool = False) -> DataFrame:
        return frame(spark, rows, body=body, attributes=attributes)

    return make
