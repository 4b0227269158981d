"""The history of a queue as tables, on Spark (docs/pipeline.md).

Nothing here is imported by the server, and importing the package alone needs none of its extra's packages:
`pip install 'laneway[pipeline]'`.
"""
