"""`laneway demo`'s workload: a scenario drawn from a seed, played against a real server through the Python client.

It counts on its own what it did, message by message, so that the server's statistics and the pipeline's tables can be
held against numbers that come from neither. It knows nothing of Spark and nothing of the server's internals.
"""
