"""The Celery application of test_celery.py; the worker process imports it with LANEWAY_TEST_BROKER_URL set."""

from __future__ import annotations

import os
import time
from typing import Any

import celery
import kombu

URL = os.environ["LANEWAY_TEST_BROKER_URL"]
PREFIX = os.environ["LANEWAY_TEST_PREFIX"]

app = celery.Celery("laneway_test", broker=URL, backend="rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.default",
    task_queues=[
        kombu.Queue(f"{PREFIX}.default"),
        kombu.Queue(f"{PREFIX}.urgent", queue_arguments={"x-max-priority": 10}),
    ],
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_expires=60,
    worker_hijack_root_logger=False,
)


@app.task
def add(x: float, y: float) -> float:
    return x + y


@app.task
def now_s() -> float:
    return time.time()


@app.task(bind=True, max_retries=5)
def fails_twice(self: celery.Task) -> dict[str, Any]:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return {"retries": self.request.retries}


@app.task(autoretry_for=(ValueError,), max_retries=1, retry_backoff=False, default_retry_delay=0)
def always_fails() -> None:
    raise ValueError("it never works")


@app.task
def breaks() -> None:
    raise KeyError("gone")


@app.task
def sleeps(seconds: float, label: str) -> tuple[str, float]:
    """What it was called and when it started."""
    started_s = time.time()
    time.sleep(seconds)
    return label, started_s


@app.task(bind=True)
def waits(self: celery.Task, seconds: float) -> None:
    """Says that it runs, then takes its time."""
    self.update_state(state="PROGRESS", meta={"waiting": seconds})
    time.sleep(seconds)


@app.task(bind=True, reject_on_worker_lost=True)
def dies_once(self: celery.Task) -> bool:
    """Ends its worker process without a word the first time; acked late, so it is delivered again."""
    if not self.request.delivery_info["redelivered"]:
        os._exit(1)
    return True
