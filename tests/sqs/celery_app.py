"""The Celery application of test_clients.py; the worker process imports it with these variables set."""

from __future__ import annotations

import os
from typing import Any

import celery

app = celery.Celery(
    "laneway_sqs", broker=os.environ["LANEWAY_TEST_BROKER_URL"], backend=os.environ["LANEWAY_TEST_BACKEND_URL"]
)
app.conf.update(
    task_default_queue="celery-sqs",
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
        "visibility_timeout": 60,
    },
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
)


@app.task
def add(x: float, y: float) -> float:
    return x + y


@app.task(bind=True, max_retries=5)
def fails_twice(self: celery.Task) -> dict[str, Any]:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return {"retries": self.request.retries}


@app.task
def breaks() -> None:
    raise KeyError("gone")
