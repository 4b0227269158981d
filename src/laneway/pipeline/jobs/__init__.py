"""The jobs, one module each: pure functions from DataFrames to DataFrames, and a thin run(spark, options)."""
