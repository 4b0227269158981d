"""A real Celery worker: results, retries, countdowns, priorities, groups and chains, remote control."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest
from celery.exceptions import TaskRevokedError

from tests import celery_worker
from tests.celery_worker import WAIT_S

from .servers import Broker, url
from .speaking import eventually


@pytest.fixture(scope="module")
def tasks(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The application's module, with a worker of two processes running beside it."""
    with worker("celery_app", broker, tmp_path_factory.mktemp("celery")) as module:
        yield module


@contextmanager
def worker(module: str, broker: Broker, folder: Path) -> Iterator[ModuleType]:
    prefix = f"{module}.{os.getpid()}"
    os.environ.update(LANEWAY_TEST_BROKER_URL=url(broker), LANEWAY_TEST_PREFIX=prefix)
    application = importlib.import_module(f"tests.amqp_clients.{module}")
    with celery_worker.worker(application, folder, ["--concurrency", "2", "--hostname", f"{prefix}@test"]):
        yield application


def test_a_result_comes_back(tasks: ModuleType) -> None:
    assert tasks.add.delay(2, 3).get(timeout=WAIT_S) == 5


def test_many_results_come_back_to_their_callers(tasks: ModuleType) -> None:
    results = [tasks.add.delay(number, 1) for number in range(100)]
    assert [result.get(timeout=WAIT_S) for result in results] == list(range(1, 101))


def test_an_exception_comes_back(tasks: ModuleType) -> None:
    with pytest.raises(KeyError, match="gone"):
        tasks.breaks.delay().get(timeout=WAIT_S)


def test_a_task_is_retried_until_it_works(tasks: ModuleType) -> None:
    assert tasks.fails_twice.delay().get(timeout=WAIT_S) == {"retries": 2}


def test_a_task_that_never_works_gives_up(tasks: ModuleType) -> None:
    with pytest.raises(ValueError, match="it never works"):
        tasks.always_fails.delay().get(timeout=WAIT_S)


def test_a_countdown_is_waited_for(tasks: ModuleType) -> None:
    started_s = time.time()
    assert tasks.now_s.apply_async(countdown=0.7).get(timeout=WAIT_S) - started_s >= 0.7


def test_an_eta_is_waited_for(tasks: ModuleType) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=0.7)
    assert tasks.now_s.apply_async(eta=eta).get(timeout=WAIT_S) >= eta.timestamp()


def test_an_expired_task_is_not_run(tasks: ModuleType) -> None:
    with pytest.raises(TaskRevokedError, match="expired"):
        tasks.now_s.apply_async(countdown=0.5, expires=0.1).get(timeout=WAIT_S)


def test_urgent_tasks_run_first(tasks: ModuleType) -> None:
    urgent = tasks.app.conf.task_queues[1].name
    # The worker's two processes are busy, and each has one more task at hand; the rest waits in the queue.
    busy = [tasks.sleeps.apply_async((0.8, "busy"), queue=urgent, priority=10) for _ in range(4)]
    results = [
        tasks.sleeps.apply_async((0.02, f"{priority}"), queue=urgent, priority=priority)
        for priority in (1, 5, 9, 1, 5, 9)
    ]
    ran = sorted((result.get(timeout=WAIT_S) for result in results), key=lambda one: one[1])
    for result in busy:
        result.get(timeout=WAIT_S)
    # Two run at a time, so neighbours may swap, but nothing less urgent is ahead of a pair.
    labels = [label for label, _ in ran]
    assert [set(labels[at : at + 2]) for at in (0, 2, 4)] == [{"9"}, {"5"}, {"1"}]


def test_a_group_and_a_chain(tasks: ModuleType) -> None:
    together = celery.group(tasks.add.s(number, number) for number in range(10))()
    assert together.get(timeout=WAIT_S) == [number * 2 for number in range(10)]
    assert celery.chain(tasks.add.s(1, 2), tasks.add.s(10), tasks.add.s(100))().get(timeout=WAIT_S) == 113


def test_progress_is_seen(tasks: ModuleType) -> None:
    seen: list[Any] = []
    result = tasks.waits.delay(0.3)
    result.get(timeout=WAIT_S, on_message=seen.append)
    states = [(body["status"], body["result"]) for body in seen if body["task_id"] == result.id]
    assert states == [("PROGRESS", {"waiting": 0.3}), ("SUCCESS", None)]


def test_a_worker_answers_to_remote_control(tasks: ModuleType) -> None:
    control = tasks.app.control
    [(node, answer)] = [*control.inspect(timeout=5, limit=1).ping().items()]
    assert answer == {"ok": "pong"}
    registered = control.inspect(destination=[node], timeout=5, limit=1).registered()[node]
    assert any(one.startswith(tasks.add.name) for one in registered)
    queues = control.inspect(destination=[node], timeout=5, limit=1).active_queues()[node]
    assert {queue["name"] for queue in queues} == {queue.name for queue in tasks.app.conf.task_queues}


def test_a_revoked_task_is_not_run(tasks: ModuleType) -> None:
    result = tasks.now_s.apply_async(countdown=1)
    tasks.app.control.revoke(result.id, reply=True, timeout=5, limit=1)
    with pytest.raises(TaskRevokedError, match="revoked"):
        result.get(timeout=WAIT_S)


def test_a_running_task_can_be_terminated(tasks: ModuleType) -> None:
    result = tasks.waits.delay(60)
    inspect = tasks.app.control.inspect(timeout=5, limit=1)
    eventually("it runs", lambda: [task for node in inspect.active().values() for task in node], within_s=WAIT_S)
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError, match="terminated"):
        result.get(timeout=WAIT_S)


def test_a_task_whose_process_died_runs_again(tasks: ModuleType) -> None:
    assert tasks.dies_once.delay().get(timeout=WAIT_S) is True


def test_a_queue_can_be_added_at_run_time(tasks: ModuleType) -> None:
    added = f"{tasks.PREFIX}.added"
    tasks.app.control.add_consumer(added, reply=True, timeout=5, limit=1)
    assert tasks.add.apply_async((1, 1), queue=added).get(timeout=WAIT_S) == 2
    [answer] = tasks.app.control.cancel_consumer(added, reply=True, timeout=5, limit=1)
    assert list(answer.values()) == [{"ok": f"no longer consuming from {added}"}]


def test_purge_tells_how_many_it_removed(tasks: ModuleType) -> None:
    queue = tasks.app.conf.task_queues[0]
    with tasks.app.connection_for_write() as connection:
        lonely = f"{tasks.PREFIX}.lonely"
        for number in range(3):
            tasks.add.apply_async((number, 0), queue=lonely)
        assert queue(connection.default_channel).channel.queue_purge(lonely) == 3


def test_quorum_queues_delay_tasks_in_the_broker(broker: Broker, tmp_path: Path) -> None:
    with worker("celery_quorum_app", broker, tmp_path) as quorum:
        started_s = time.time()
        late = quorum.now.apply_async(countdown=3)
        soon = quorum.now.apply_async()
        ran = late.get(timeout=WAIT_S)
        assert ran["at_s"] >= started_s + 3
        assert soon.get(timeout=WAIT_S)["at_s"] < ran["at_s"]
        assert ran["deaths"] == 2  # it waited for two seconds and for one
