"""Makes `format("laneway")` work unregistered: Spark looks for a DefaultSource in modules named pyspark_*."""

from laneway.pipeline.datasource import LanewayDataSource as DefaultSource

__all__ = ["DefaultSource"]
