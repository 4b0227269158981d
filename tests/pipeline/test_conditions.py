from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from laneway.errors import InvalidInput
from laneway.pipeline.conditions import matching


def test_a_condition_chooses_rows(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("expired", 1), ("rejected", 2), (None, 3)], "reason string, n int")
    assert [row["n"] for row in matching(frame, "reason = 'expired' OR n > 2 -- both").collect()] == [1, 3]
    assert matching(frame, "reason = 'x'").count() == 0


@pytest.mark.parametrize("condition", ["n = 1 AND", "n = 1 n", "n = 'open", "(n = 1", "n = 1; drop table x"])
def test_what_is_no_condition_is_refused(spark: SparkSession, condition: str) -> None:
    frame = spark.createDataFrame([("expired", 1)], "reason string, n int")
    with pytest.raises(InvalidInput, match="is no condition in SQL") as refused:
        matching(frame, condition)
    assert refused.value.field == "where"
