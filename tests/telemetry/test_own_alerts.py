"""Alerts that the server evaluates itself: when each fires and when it is over, and that a webhook hears of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from laneway.node.alerting import as_slack
from laneway.telemetry import alerts
from laneway.telemetry.alerts import AlertWatch, quantile
from laneway.telemetry.histograms import WAITING_SECONDS, Histogram
from laneway.telemetry.load import CursorLoad, Loads, PartitionSurvey, ProcessLoad, QueueLoad
from laneway.telemetry.meter import Meter, MeterReading
from tests.crash.server import eventually
from tests.processes.several import SeveralProcesses
from tests.telemetry.test_alerts import RULES, receiving


def queue(**differing: Any) -> QueueLoad:
    usual = {
        "vhost": "/", "name": "q", "partition": 0, "tier": "normal", "waiting": 0, "leased": 0, "delayed": 0, "dead": 0,
        "dead_elsewhere": 0, "waiting_bytes": 0, "oldest_age_s": None, "consumers": 1, "consumers_waiting": 0,
        "waiting_by_priority": {}, "totals": {}, "published_per_second": 0.0, "delivered_per_second": 0.0,
        "acked_per_second": 0.0,
    }  # fmt: skip
    return QueueLoad(**(usual | differing))


def reading(operations: int = 0, processing: list[float] | None = None) -> MeterReading:
    meter = Meter()
    meter.messages["http", "publish"] = operations
    found = meter.reading()
    histogram = Histogram(WAITING_SECONDS)
    for value in processing or ():
        histogram.add(value)
    found.processing = {"amqp": histogram.buckets()}
    return found


def loads(*queues: QueueLoad, errors: int = 0, dead: int = 0, meter: MeterReading | None = None, **more: Any) -> Loads:
    one = {"free_bytes": 3 << 30, "state": "ready", "totals": {"dead_lettered": dead}, "meter": meter or reading()}
    process = ProcessLoad(
        process=0, pid=1, state="ready", partitions=[0], errors=[("http", "server", "disk_full", errors)]
    )
    return Loads(processes=[process], partitions=[PartitionSurvey(partition=0, **(one | more))], queues=list(queues))


def names(watch: AlertWatch) -> list[str]:
    return sorted(alert.name for alert in watch.firing.values())


@pytest.mark.parametrize(
    ("name", "holds", "lasts_s"),
    [
        ("QueueDeep", loads(queue(waiting=10_001)), 60),
        ("QueueOld", loads(queue(oldest_age_s=301.0)), 60),
        ("CriticalQueueOld", loads(queue(oldest_age_s=31.0, tier="critical")), 30),
        ("QueueWithoutConsumer", loads(queue(waiting=1, consumers=0)), 60),
        ("PartitionWithoutLeader", Loads(partitions=[PartitionSurvey(partition=1, state="unreachable")]), 30),
        ("ProcessDown", Loads(processes=[ProcessLoad(process=1, pid=None, state="", partitions=[])]), 30),
        ("DiskFull", loads(state="disk_full"), 15),
        ("DiskFilling", loads(free_bytes=1 << 30), 60),
        ("CursorBehind", loads(cursors=[CursorLoad(name="c", lag_commits=100_001, held_bytes=0, is_lost=False)]), 300),
        ("CursorLost", loads(cursors=[CursorLoad(name="c", lag_commits=0, held_bytes=0, is_lost=True)]), 0),
    ],
)
def test_alert_fires_when_its_condition_has_lasted_and_is_over_with_it(name: str, holds: Loads, lasts_s: int) -> None:
    watch = AlertWatch()
    well = loads(queue(waiting=10_000, oldest_age_s=300.0))
    assert watch.look(900.0, well) == ([], [])
    if lasts_s:
        assert watch.look(1_000.0, holds) == ([], [])
        assert watch.look(1_000.0 + lasts_s - 1, holds) == ([], [])
    fresh, over = watch.look(1_000.0 + lasts_s, holds)
    assert ([one.name for one in fresh], over, fresh[0].since_ms) == ([name], [], 1_000_000)
    assert watch.look(1_001.0 + lasts_s, holds) == ([], []) and names(watch) == [name]
    fresh, over = watch.look(1_002.0 + lasts_s, well)
    assert (fresh, [one.name for one in over], watch.firing) == ([], [name], {})


def test_rise_of_dead_letters_within_an_hour_counts_and_no_restart() -> None:
    watch = AlertWatch()
    for now_s, dead in ((0.0, 5_000), (10.0, 5_100), (20.0, 0), (30.0, 1)):  # begun anew with 0
        watch.look(now_s, loads(dead=dead))
        assert names(watch) == (["DeadLetters"] if dead == 1 else [])
    watch.look(40.0, Loads())  # nobody answers
    watch.look(50.0, loads(dead=1))
    assert names(watch) == ["DeadLetters"]
    watch.look(3_700.0, loads(dead=1))
    assert names(watch) == []


def test_share_of_errors_and_slow_processing_are_those_of_five_minutes() -> None:
    watch = AlertWatch()
    watch.look(0.0, loads(errors=100, meter=reading(100, [60.0] * 10)))  # before anybody looked
    for now_s in (10.0, 80.0):
        watch.look(now_s, loads(errors=101, meter=reading(199, [60.0] * 10 + [50.0] * 2 + [1.0] * 8)))
    assert names(watch) == ["ProcessingSlow"]  # 1 of 100 is not above 1 %
    for now_s in (90.0, 160.0):
        watch.look(now_s, loads(errors=102, meter=reading(199, [60.0] * 10 + [50.0] * 2 + [1.0] * 60)))
    assert names(watch) == ["Errors"]
    watch.look(600.0, loads(errors=102, meter=reading(199, [60.0] * 10 + [50.0] * 2 + [1.0] * 60)))
    assert names(watch) == []


def test_quantile_is_estimated_as_prometheus_does() -> None:
    counts = [0.0] * (len(WAITING_SECONDS) + 1)
    assert quantile(0.95, counts) == 0
    counts[WAITING_SECONDS.index(10.0)], counts[WAITING_SECONDS.index(60.0)] = 90, 10
    assert quantile(0.95, counts) == pytest.approx(45.0)
    counts = [0.0] * len(WAITING_SECONDS) + [5.0]
    assert quantile(0.95, counts) == WAITING_SECONDS[-1]


def test_thresholds_and_alerts_are_those_of_prometheus() -> None:
    rules = {r["alert"]: r["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for r in group["rules"]}
    source = Path(alerts.__file__).read_text()
    assert {f"Laneway{name}" for name in re.findall(r'_Found\("(\w+)"', source)} == set(rules) - {"LanewayUnreachable"}
    for name, number in (
        ("QueueDeep", alerts.DEEP),
        ("QueueOld", alerts.OLD_S),
        ("CriticalQueueOld", alerts.CRITICAL_OLD_S),
        ("DeadLetters", alerts.DEAD_AN_HOUR),
        ("ProcessingSlow", alerts.SLOW_S),
        ("Errors", alerts.ERROR_SHARE),
        ("CursorBehind", alerts.LAG_COMMITS),
    ):
        assert re.search(rf"> {number}$", rules[f"Laneway{name}"].strip()), name
    assert rules["LanewayDiskFilling"].endswith("< 2 * 1024 * 1024 * 1024") and alerts.FREE_BYTES == 2 * 1024**3


def test_slack_gets_a_line_for_each() -> None:
    one = {"status": "firing", "name": "QueueDeep", "severity": "warning", "summary": "Queue q is deep"}
    text = as_slack([one, {**one, "status": "resolved"}])["text"].splitlines()
    assert text == [
        ":fire: *QueueDeep* (warning): Queue q is deep",
        ":white_check_mark: *QueueDeep* (warning): Queue q is deep",
    ]
    assert as_slack([one] * 103)["text"].endswith("… and 3 more")


def test_webhook_hears_what_fires_and_any_process_shows_it(tmp_path: Path) -> None:
    with receiving() as (port, came):
        hook = tmp_path / "hook"
        hook.write_text(f"http://127.0.0.1:{port}/a-secret\n")
        with SeveralProcesses(tmp_path / "data", "--alert-webhook", str(hook)) as server:
            by_process = server.by_process()
            one = next(iter(by_process.values()))
            assert one.must(200, "GET", "/alerts") == {"alerts": []}
            one.must(201, "PUT", "/queues/q")
            for _ in range(2):
                messages = [{"payload": "x"}] * 60
                one.must(201, "POST", "/queues/q/messages", messages)
                taken = one.must(200, "POST", "/queues/q/dequeue", {"max_messages": 60})["messages"]
                handles = [{"receipt_handle": message["receipt_handle"]} for message in taken]
                one.must(200, "POST", "/queues/q/reject", handles)

            def fires() -> bool:
                return any((alert["name"], alert["status"]) == ("DeadLetters", "firing") for alert in came)

            eventually("the webhook hears of it", fires, within_s=60)
            for connection in by_process.values():
                (alert,) = connection.must(200, "GET", "/alerts")["alerts"]
                assert (alert["name"], alert["severity"]) == ("DeadLetters", "warning")
                assert alert["summary"] == "120 messages became dead letters within an hour"
            assert "a-secret" not in server.log()
