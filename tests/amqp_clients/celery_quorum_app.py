"""A Celery application on quorum queues, which delays tasks in the broker: 28 queues with times to live of 2ⁿ seconds,
topic exchanges bound to one another, and dead letters from each to the next."""

from __future__ import annotations

import os
import time
from typing import Any

import celery
import kombu

URL = os.environ["LANEWAY_TEST_BROKER_URL"]
PREFIX = os.environ["LANEWAY_TEST_PREFIX"]

app = celery.Celery("laneway_quorum_test", broker=URL, backend="rpc://")
app.conf.update(
    task_default_queue=f"{PREFIX}.quorum",
    task_queues=[
        kombu.Queue(
            f"{PREFIX}.quorum",
            kombu.Exchange(f"{PREFIX}.tasks", type="topic"),
            routing_key=f"{PREFIX}.quorum",
            queue_arguments={"x-queue-type": "quorum"},
        )
    ],
    task_default_exchange=f"{PREFIX}.tasks",
    task_default_exchange_type="topic",
    task_default_routing_key=f"{PREFIX}.quorum",
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(bind=True)
def now(self: celery.Task) -> dict[str, Any]:
    """When it runs, and how often it died on the way."""
    return {"at_s": time.time(), "deaths": len((self.request.headers or {}).get("x-death", ()))}
