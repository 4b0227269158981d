"""One Spark session for all tests of the pipeline: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from laneway.pipeline.session import session
from tests.pipeline.drivers import QUICK
from tests.pipeline.events import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
            **QUICK,
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.memory": "2g",
            # What Spark would show of past queries on its page fills the heap, and there is no page.
            "spark.sql.ui.retainedExecutions": "10",
            "spark.ui.retainedJobs": "10",
            "spark.ui.retainedStages": "10",
            "spark.ui.retainedTasks": "100",
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
