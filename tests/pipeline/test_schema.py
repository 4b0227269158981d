from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from laneway.errors import InvalidInput
from laneway.pipeline.schema import EVENTS, arrow_schema, spark_schema


def test_body_and_attributes_are_there_only_when_asked_for() -> None:
    names = [column.name for column in EVENTS]
    assert len(names) == len(set(names))
    assert spark_schema(body=True, attributes=True).names == names
    assert spark_schema().names == [name for name in names if name not in ("body", "attributes")]
    assert spark_schema(body=True).names == [name for name in names if name != "attributes"]


def test_arrow_batches_have_the_schema_that_spark_expects() -> None:
    # Spark parses its schema from text, so that is what ours has to equal, comments or not.
    spark = StructType.fromJson(spark_schema(body=True, attributes=True).jsonValue())
    assert to_arrow_schema(spark, timezone="UTC").equals(arrow_schema(body=True, attributes=True))
    chosen = StructType([spark["time"], spark["attributes"], spark["index"]])
    assert to_arrow_schema(chosen, timezone="UTC").equals(arrow_schema(["time", "attributes", "index"]))


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"'qeue' is no column of events; there are partition, position"):
        arrow_schema(["time", "qeue"])


def test_the_server_and_the_schema_need_no_spark() -> None:
    program = (
        "import sys; import laneway.node, laneway.cli, laneway.pipeline.schema\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_spark_finds_the_source_under_its_name() -> None:
    from laneway.pipeline.datasource import LanewayDataSource
    from pyspark_laneway import DefaultSource

    assert DefaultSource is LanewayDataSource and DefaultSource.name() == "laneway"
