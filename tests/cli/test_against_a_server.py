"""The commands against a real server: what they do there, and what they print."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner, Result

from laneway.cli import cli

from .conftest import Server, StartServer

Run = Callable[..., Result]


def runner(url: str) -> Run:
    def run(*arguments: str, stdin: str | bytes | None = None, code: int = 0, **env: str) -> Result:
        clean = dict.fromkeys(("LANEWAY_KEY", "LANEWAY_USER", "LANEWAY_PASSWORD", "LANEWAY_VHOST"))
        done = CliRunner().invoke(
            cli, arguments, input=stdin, env={**clean, "LANEWAY_URL": url, **env}, prog_name="laneway"
        )
        assert done.exit_code == code, f"{arguments} ended with {done.exit_code}: {done.output}\n{done.exception!r}"
        return done

    return run


@pytest.fixture
def run(server: Server) -> Run:
    return runner(server.url)


@pytest.fixture
def queue(run: Run, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name)
    run("queue", "create", name)
    return name


def json_lines(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- queues


def test_a_queue_from_creation_to_deletion(run: Run) -> None:
    assert (
        run("queue", "create", "life", "--lease", "2m", "--max-bytes", "1MiB", "--ttl", "1d").stdout == "life created\n"
    )
    made = json.loads(run("queue", "describe", "life", "--json").stdout)
    assert (made["visibility_timeout"], made["max_bytes"], made["message_ttl_seconds"]) == (120, 1 << 20, 86_400)
    assert "already" in run("queue", "create", "life", code=1).stderr
    assert run("queue", "create", "life", "--exist-ok", "--lease", "1s").stdout == "life exists already\n"
    assert (
        run("queue", "change", "life", "--max-bytes", "none", "--dead-letter-queue", "none").stdout == "life changed\n"
    )
    described = run("queue", "describe", "life").stdout
    assert re.search(r"^visibility_timeout +2m *$", described, re.MULTILINE)
    assert re.search(r"^max_bytes +none *$", described, re.MULTILINE)
    assert "life" in run("queue", "list", "--prefix", "lif").stdout
    assert run("queue", "delete", "life", stdin="y\n").stdout == "deleted life\n"
    assert run("queue", "list", "--prefix", "lif").stdout == ""
    gone = run("queue", "describe", "life", code=1)
    assert gone.stderr.count("\n") == 1 and "`laneway queue create` makes one" in gone.stderr


def test_a_queue_is_declared_with_arguments(run: Run) -> None:
    arguments = ("--argument", "x-max-priority=9", "--argument", "x-overflow=reject-publish")
    made = json.loads(run("queue", "create", "declared", *arguments, "--json").stdout)
    assert made["arguments"] == {"x-max-priority": 9, "x-overflow": "reject-publish"}
    assert (made["max_priority"], made["overflow"]) == (9, "reject")
    refused = run("queue", "create", "wrong", "--argument", "x-max-priority=high", code=1)
    assert refused.stderr.startswith("laneway: x-max-priority is a whole number, not 'high'")
    assert "beside arguments" in run("queue", "create", "wrong", *arguments, "--lease", "1m", code=1).stderr


def test_listing_stops_at_the_limit_and_says_so(run: Run) -> None:
    for n in range(3):
        run("queue", "create", f"many-{n}")
    listed = run("queue", "list", "--prefix", "many-", "--limit", "2", "--json")
    assert [one["queue_name"] for one in json_lines(listed)] == ["many-0", "many-1"]
    assert "more than 2" in listed.stderr
    assert run("queue", "list", "--prefix", "many-", "--limit", "3").stderr == ""


def test_a_setting_out_of_range_is_refused_in_wire_words(run: Run) -> None:
    refused = run("queue", "create", "wrong", "--max-priority", "999", "--json", code=1)
    error = json.loads(refused.stderr)["error"]
    assert (error["code"], error["field"]) == ("invalid_input", "max_priority")


def test_another_virtual_host_is_another_place(run: Run) -> None:
    refused = run("queue", "create", "here", "--vhost", "elsewhere", code=1)
    assert refused.stderr == (
        "laneway: there is no virtual host 'elsewhere'; create it first "
        "(`laneway vhost list` shows those there are, `laneway vhost create` makes one)\n"
    )
    run("vhost", "create", "elsewhere")
    run("queue", "create", "here", "--vhost", "elsewhere")
    assert run("queue", "describe", "here", code=1).stderr.startswith("laneway: ")
    assert json.loads(run("--vhost", "elsewhere", "queue", "describe", "here", "--json").stdout)["vhost"] == "elsewhere"


def test_virtual_hosts_are_made_listed_and_deleted(run: Run) -> None:
    run("vhost", "create", "shop")
    run("queue", "create", "orders", "--vhost", "shop")
    assert "shop" in run("vhost", "list").stdout
    listed = [json.loads(line) for line in run("vhost", "list", "--json").stdout.splitlines()]
    assert {"vhost": "shop", "queue_count": 1} in listed
    assert run("vhost", "delete", "shop", code=2).stderr.endswith(
        "there is nobody to ask: give --yes (`laneway vhost delete --help` explains)\n"
    )
    assert run("vhost", "delete", "shop", "--yes").stdout == "deleted shop\n"
    assert run("queue", "list", "--vhost", "shop", code=1).stderr.startswith("laneway: there is no virtual host 'shop'")


@pytest.mark.parametrize(
    ("exchange", "key", "said"), [("", "letters", "'letters'"), ("dead", "none", "a queue behind exchange 'dead'")]
)
def test_redriving_the_queue_that_letters_left_says_where_they_are(
    run: Run, queue: str, exchange: str, key: str, said: str
) -> None:
    name = f"{queue}-work"
    options = ("--dead-letter-exchange", exchange, "--dead-letter-routing-key", key)
    run("queue", "create", name, *options)
    assert run("redrive", name).stderr == f"laneway: dead letters of {name!r} go to {said}: redrive that one\n"


def test_exchanges_and_bindings_from_creation_to_deletion(run: Run, queue: str) -> None:
    assert run("exchange", "create", "orders", "--type", "topic", "--alternate", "rest").stdout == "orders exists now\n"
    assert (
        json.loads(run("exchange", "create", "rest", "--type", "fanout", "--transient", "--json").stdout)["durable"]
        is False
    )
    refused = run("exchange", "create", "orders", code=1).stderr
    assert "exists with other settings" in refused and "delete it first" in refused
    assert run("route", "", queue).stdout == run("route", "amq.default", queue).stdout
    assert re.search(r"^orders +topic +0 +alternate rest$", run("exchange", "list").stdout, re.MULTILINE)
    listed = json_lines(run("exchange", "list", "--prefix", "or", "--json"))
    assert [(one["exchange_name"], one["type"]) for one in listed] == [("orders", "topic")]
    assert "more than 1" in run("exchange", "list", "--limit", "1").stderr

    bound = run("binding", "create", "orders", queue, "--routing-key", "a.#")
    assert bound.stdout == f"{queue} is bound to orders\n"
    run("binding", "create", "orders", "rest", "--to-exchange", "--routing-key", "b")
    run("binding", "create", "amq.headers", queue, "--argument", "x-match=any", "--argument", "size=3")
    lines = json_lines(run("binding", "list", "--from", "orders", "--json"))
    assert [(one["destination_type"], one["destination"]) for one in lines] == [("exchange", "rest"), ("queue", queue)]
    assert "x-match=any size=3" in run("binding", "list", "--to", queue).stdout

    reached = run("route", "orders", "a.b").stdout
    assert reached.splitlines()[1].split("  ")[0] == queue and "matches the pattern 'a.#'" in reached
    assert json.loads(run("route", "amq.headers", "-a", "size=3", "--json").stdout)["queues"] == [queue]
    assert run("route", "orders", "c").stderr == (
        "laneway: it would reach no queue: none of the 2 bindings of exchange 'orders' matches and leads to a queue, "
        "nor does its alternate exchange 'rest' lead anywhere\n"
    )

    sent = run("exchange", "publish", "orders", "a.b", '{"n": 1}', "--priority", "7", "-a", "size=3").stdout
    assert sent.splitlines()[1].split("  ")[0] == queue
    assert json.loads(run("exchange", "publish", "orders", "a.c", "-", "--json", stdin="2").stdout)["queue_count"] == 1
    waiting = json_lines(run("peek", queue, "--json"))
    assert [(one["priority"], one["payload"]) for one in waiting] == [(7, {"n": 1}), (5, 2)]
    assert "`laneway route orders c` shows why" in run("exchange", "publish", "orders", "c", "1", code=1).stderr

    missing = run("binding", "delete", "orders", queue, "--routing-key", "a", code=1)
    assert "`laneway binding list` shows those there are" in missing.stderr
    assert run("binding", "delete", "orders", queue, "--routing-key", "a.#").stdout == (
        f"{queue} is no longer bound to orders\n"
    )
    arguments = ("--argument", "x-match=any", "--argument", "size=3")
    assert json.loads(run("binding", "delete", "amq.headers", queue, *arguments, "--json").stdout)["deleted"]
    assert "has 1 bindings" in run("exchange", "delete", "orders", "--if-unused", code=1).stderr
    assert run("exchange", "delete", "orders", stdin="y\n").stdout == "deleted orders\n"
    assert run("exchange", "delete", "rest", "--yes", "--json").stdout == '{"deleted":"rest"}\n'
    assert run("binding", "list").stderr == "laneway: there are none\n"
    assert "`laneway exchange create` makes one" in run("route", "orders", "a", code=1).stderr


def test_a_queue_that_is_not_empty_is_not_deleted_if_that_was_asked(run: Run, queue: str) -> None:
    run("send", queue, "1")
    run("queue", "delete", queue, "--if-empty", code=1)
    run("queue", "delete", queue, "--yes")


# --- messages


def test_sending_and_receiving_with_all_options(run: Run, queue: str) -> None:
    sent = run(
        "send", queue, '{"id": 1}', "-p", "8", "-a", "region=eu", "-a", "size=3", "-a", 'zip="04109"',
        "--correlation-id", "c", "--group", "g", "--message-key", "k", "--tenant", "t", "--dedup-id", "d",
        "--ttl", "1h",
    ).stdout.strip()  # fmt: skip
    [message] = json_lines(run("receive", queue, "--lease", "5m", "--consumer", "me", "--json"))
    assert message["message_id"] == sent
    assert message["payload"] == {"id": 1}
    assert message["attributes"] == {"region": "eu", "size": 3, "zip": "04109"}
    assert [message[name] for name in ("priority", "correlation_id", "group", "key", "tenant", "dedup_id")] == [
        8, "c", "g", "k", "t", "d",
    ]  # fmt: skip
    [leased] = json_lines(run("peek", queue, "--state", "leased", "--json"))
    assert leased["consumer_id"] == "me"


@pytest.mark.parametrize(
    ("body", "flags", "payload", "content_type"),
    [
        (b'{"a": 1}\n', (), {"a": 1}, None),
        (b"hello there", (), "hello there", "text/plain"),
        (b"5", ("--content-type", "text/plain"), "5", "text/plain"),
        (b"[1]", ("--content-type", "application/json"), [1], None),
        (b"\xff\x00", (), "/wA=", "application/octet-stream"),
        (b"\x89PNG", ("--content-type", "image/png"), "iVBORw==", "image/png"),
    ],
)
def test_a_body_from_stdin_is_taken_for_what_it_is(
    run: Run, queue: str, body: bytes, flags: tuple[str, ...], payload: object, content_type: str | None
) -> None:
    run("send", queue, "-", *flags, stdin=body)
    [message] = json_lines(run("receive", queue, "--json", "--ack"))
    assert message.get("payload", message.get("payload_base64")) == payload
    assert message.get("content_type") == content_type


def test_a_body_that_is_not_the_json_it_claims_to_be_is_refused(run: Run, queue: str) -> None:
    assert "not JSON" in run("send", queue, "{", "--content-type", "application/json", code=1).stderr


@pytest.mark.parametrize("body", ['{"a": 1.10,  "n": 12345678901234567890123}', '{"a": 1, "a": 2}', "1e400"])
def test_json_is_published_as_it_was_written(server: Server, run: Run, queue: str, body: str) -> None:
    run("send", queue, "-", stdin=f"{body}\n")
    run("send", queue, "--lines", stdin=f"{body}\n")
    assert httpx.get(f"{server.url}/queues/{queue}/messages").text.count(f'"payload":{body},') == 2


def test_what_only_looks_like_json_is_published_as_text(run: Run, queue: str) -> None:
    for body in ("NaN", "[" * 100_000):
        run("send", queue, "-", stdin=body)
        [message] = json_lines(run("receive", queue, "--json", "--ack"))
        assert (message["payload"], message["content_type"]) == (body, "text/plain")


def test_lines_become_messages_in_order(run: Run, queue: str) -> None:
    lines = "".join(f'{{"n":{n}}}\n' for n in range(2500)) + "\n"
    assert run("send", queue, "--lines", stdin=lines).stdout == "published 2500 messages\n"
    received: list[Any] = []
    for _ in range(3):
        received += [
            message["payload"]["n"] for message in json_lines(run("receive", queue, "--max", "1000", "--ack", "--json"))
        ]
    assert received == list(range(2500))
    assert "no message" in run("receive", queue).stderr


def test_lines_that_are_refused_are_named_and_the_others_are_sent(run: Run) -> None:
    run("queue", "create", "narrow", "--max-message-bytes", "16")
    refused = run("send", "narrow", "--lines", stdin="1\n" + "x" * 100 + "\n3\n", code=1)
    assert "published 2 messages" in refused.stdout
    assert "1 of 3 messages were refused" in refused.stderr


def test_messages_are_shown_for_people(run: Run, queue: str) -> None:
    run("send", queue, "ring\x07 the bell", "-a", "region=eu", "-p", "3")
    shown = run("receive", queue).stdout
    assert "priority 3" in shown and "region=eu" in shown and "receipt " in shown
    assert "ring\\x07 the bell" in shown
    run("send", queue, '{"a":1}')
    assert run("receive", queue, "--bodies", "--ack").stdout == '{"a":1}\n'


def test_received_messages_are_settled_by_their_receipts(run: Run, queue: str) -> None:
    run("send", queue, "--lines", stdin="\n".join(map(str, range(5))))
    received = run("receive", queue, "--max", "5", "--json").stdout
    receipts = [json.loads(line)["receipt_handle"] for line in received.splitlines()]
    assert run("ack", queue, receipts[0]).stdout == "acked 1 message\n"
    assert run("release", queue, receipts[1], "--delay", "5m").stdout == "released 1 message\n"
    assert run("reject", queue, receipts[2], "--reason", "no customer").stdout == "rejected 1 message\n"
    assert run("extend", queue, receipts[3], "--lease", "10m").stdout == "extended 1 message\n"
    late = run("ack", queue, "-", stdin=received, code=1)
    assert "acked 2 messages" in late.stdout
    assert "3 of 5 messages could not be acked" in late.stderr
    [dead] = json_lines(run("peek", queue, "--state", "dead", "--json"))
    assert dead["dead_letter"]["detail"] == "no customer"


def test_receipts_come_from_stdin_plain_or_as_json(run: Run, queue: str) -> None:
    run("send", queue, "--lines", stdin="1\n2\n")
    lines = run("receive", queue, "--max", "2", "--json").stdout.splitlines()
    plain = json.loads(lines[0])["receipt_handle"]
    assert run("ack", queue, "-", stdin=f"{plain}\n\n{lines[1]}\n").stdout == "acked 2 messages\n"
    assert "line 1 of stdin" in run("ack", queue, "-", stdin='{"other": 1}\n', code=1).stderr


def test_peeking_shows_what_is_chosen(run: Run, queue: str) -> None:
    run("send", queue, "first", "-p", "9", "-a", "region=eu")
    run("send", queue, "second", "-p", "1", "--delay", "10m")
    table = run("peek", queue, "--state", "ready", "--state", "delayed").stdout.splitlines()
    assert table[0].split() == ["message", "state", "priority", "age", "receives", "payload"]
    assert [line.split()[1] for line in table[1:]] == ["ready", "delayed"]
    assert [one["payload"] for one in json_lines(run("peek", queue, "--attribute", "region=eu", "--json"))] == ["first"]
    assert "no such message" in run("peek", queue, "--older-than", "1h").stderr


def test_waiting_longer_than_one_request_may(run: Run, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.cli.messages.LONGEST_WAIT_SECONDS", 0.1)
    began_at = time.monotonic()
    assert "no message" in run("receive", queue, "--wait", "350ms").stderr
    assert 0.3 < time.monotonic() - began_at < 10


# --- statistics, dead letters


def test_statistics_of_one_and_of_all(run: Run, queue: str) -> None:
    run("send", queue, "--lines", stdin="1\n2\n3\n")
    run("receive", queue)
    one = json.loads(run("stats", queue, "--json").stdout)
    assert (one["approximate_message_count"], one["in_flight_count"]) == (2, 1)
    shown = run("stats", queue).stdout
    assert re.search(r"^waiting +2 *$", shown, re.MULTILINE) and re.search(r"^leased +1 *$", shown, re.MULTILINE)
    table = run("stats", "--prefix", queue).stdout.splitlines()
    assert table[0].split() == [
        "queue",
        "waiting",
        "delayed",
        "leased",
        "dead",
        "oldest",
        "bytes",
        "in/s",
        "out/s",
        "acked/s",
    ]
    assert table[1].split()[:5] == [queue, "2", "0", "1", "0"]
    assert [line["queue_name"] for line in json_lines(run("stats", "--prefix", queue, "--json"))] == [queue]
    assert "no queues" in run("stats", "--prefix", "no-such-prefix").stderr


def test_watching_prints_again_and_again(server: Server, run: Run, queue: str) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "laneway", "stats", queue, "--watch", "--every", "10ms", "--json", "--url", server.url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert [json.loads(watching.stdout.readline())["queue_name"] for _ in range(3)] == [queue] * 3
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=10)


def dead_letters(run: Run, queue: str, count: int) -> None:
    run("send", queue, "--lines", stdin="\n".join(map(str, range(count))))
    run("reject", queue, "-", stdin=run("receive", queue, "--max", str(count), "--json").stdout)


def test_redriving_waits_and_says_how_many(run: Run, queue: str) -> None:
    dead_letters(run, queue, 5)
    assert re.search(r"completed: moved 5( of 5)?\n", run("redrive", queue).stdout)
    assert len(json_lines(run("receive", queue, "--max", "10", "--json"))) == 5


def test_redriving_some_to_another_queue(run: Run, queue: str) -> None:
    run("queue", "create", f"{queue}-other")
    dead_letters(run, queue, 3)
    chosen = json_lines(run("peek", queue, "--state", "dead", "--json"))[1]
    task = json.loads(run("redrive", queue, "--id", chosen["message_id"], "--to", f"{queue}-other", "--json").stdout)
    assert (task["state"], task["moved"]) == ("completed", 1)
    assert [one["payload"] for one in json_lines(run("receive", f"{queue}-other", "--json"))] == [chosen["payload"]]


def test_a_slow_redrive_is_looked_at_and_cancelled(run: Run, queue: str) -> None:
    dead_letters(run, queue, 100)
    task = json.loads(run("redrive", queue, "--rate", "1", "--no-wait", "--json").stdout)
    assert task["state"] == "running"
    assert task["task_id"] in run("redrive", "--status", task["task_id"]).stdout
    assert "cancelled" in run("redrive", "--cancel", task["task_id"]).stdout
    assert json.loads(run("redrive", "--status", task["task_id"], "--json").stdout)["state"] == "cancelled"


def test_interrupting_the_wait_leaves_the_redrive_running(server: Server, run: Run, queue: str) -> None:
    dead_letters(run, queue, 100)
    waiting = subprocess.Popen(
        [sys.executable, "-m", "laneway", "redrive", queue, "--rate", "1", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while json.loads(run("stats", queue, "--json").stdout)["dlq_count"] == 100:
        assert time.monotonic() < deadline
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=10)
    assert waiting.returncode == 1
    task_id = re.search(r"--cancel (\S+)`", said)
    assert task_id, said
    assert "cancelled" in run("redrive", "--cancel", task_id[1]).stdout


def test_purging_messages_and_dead_letters(run: Run, queue: str) -> None:
    dead_letters(run, queue, 3)
    run("send", queue, "1")
    assert run("purge", queue, stdin="y\n").stdout == "deleted 1 message\n"
    assert run("purge", queue, "--dead", "--reason", "expired", "--yes").stdout == "deleted 0 dead letters\n"
    assert json.loads(run("purge", queue, "--dead", "--yes", "--json").stdout) == {"deleted": 3}
    assert "give --yes" in run("purge", queue, stdin="", code=2).stderr
    run("purge", queue, stdin="n\n", code=1)


def test_a_redrive_that_finds_nothing_says_where_the_dead_letters_are(run: Run, queue: str) -> None:
    assert run("redrive", queue).stderr == ""
    run("queue", "create", f"{queue}-dead")
    run("queue", "change", queue, "--dead-letter-queue", f"{queue}-dead")
    assert f"go to '{queue}-dead'" in run("redrive", queue).stderr
    assert "rejected" in run("redrive", queue, "--reason", "no such customer", code=2).stderr


# --- bench, completion


def test_bench_measures_and_cleans_up(run: Run) -> None:
    options = ("--messages", "300", "--connections", "4", "--size", "100", "--priorities", "3")
    for batch in ("1", "50"):
        measured = json.loads(run("bench", *options, "--batch", batch, "--json").stdout)
        for phase in ("publish", "receive", "ack"):
            assert measured[phase]["messages"] == 300
            assert measured[phase]["messages_per_second"] > 0
            assert 0 < measured[phase]["latency_ms"]["p50"] <= measured[phase]["latency_ms"]["max"]
    assert run("queue", "list", "--prefix", "laneway-bench").stdout == ""
    assert len(run("bench", *options).stdout.splitlines()) == 4


def test_names_of_queues_are_completed(server: Server, run: Run) -> None:
    for name in ("complete-a", "complete-b"):
        run("queue", "create", name)
    env = {"_LANEWAY_COMPLETE": "bash_complete", "COMP_WORDS": "laneway stats compl", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "laneway"],
        env={**env, "LANEWAY_URL": server.url},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == ["complete-a", "complete-b"]


# --- accounts: each test with a server of its own, because the first account changes it for all


def test_accounts_and_keys_from_the_first_admin_on(start_server: StartServer) -> None:
    url = start_server().url
    run = runner(url)
    run("account", "create", "ann", "--role", "admin", "--new-password", "-", stdin="secret\n")
    locked_out = run("stats", code=1)
    assert "give --key" in locked_out.stderr
    ann = ("--user", "ann", "--password", "secret")
    run("account", "delete", "guest", "--yes", *ann)
    run("account", "create", "shop", "--write", "orders.*", "--read", "orders.eu", "--no-password", *ann)
    assert "already" in run("account", "create", "shop", "--no-password", *ann, code=1).stderr
    listed = run("account", "list", *ann).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["account", "ann", "shop"]
    assert listed[2].endswith("read orders.eu; write orders.*")

    created = run("key", "create", "shop", "--label", "till", *ann)
    key = created.stdout.strip()
    assert key.startswith("lw_") and "not shown again" in created.stderr
    run("queue", "create", "orders.eu", *ann)
    run("queue", "create", "other", *ann)
    run("send", "orders.eu", "1", LANEWAY_KEY=key)
    assert json_lines(run("receive", "orders.eu", "--json", "--key", key))
    refused = run("send", "other", "1", LANEWAY_KEY=key, code=1)
    assert "no write permission" in refused.stderr and "`laneway account change`" in refused.stderr

    made = dict(line.split("=", 1) for line in run("key", "create", "shop", "--aws", *ann).stdout.splitlines())
    sqs = boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=made["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=made["AWS_SECRET_ACCESS_KEY"],
    )
    sqs.send_message(QueueUrl="orders.eu", MessageBody="by SQS")
    run("key", "delete", "shop", made["AWS_ACCESS_KEY_ID"], *ann)
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        sqs.send_message(QueueUrl="orders.eu", MessageBody="by SQS")

    run("account", "change", "shop", "--no-permissions", *ann)
    run("send", "orders.eu", "1", LANEWAY_KEY=key, code=1)
    key_id = json_lines(run("key", "list", "shop", "--json", *ann))[0]["key_id"]
    assert "till" in run("key", "list", "shop", *ann).stdout
    run("key", "delete", "shop", key_id, *ann)
    assert "not known" in run("stats", LANEWAY_KEY=key, code=1).stderr
    assert "last admin" in run("account", "delete", "ann", "--yes", *ann, code=1).stderr


def test_permissions_other_than_read_are_enough_for_what_they_are_for(start_server: StartServer) -> None:
    run = runner(start_server().url)
    run("account", "create", "ann", "--role", "admin", "--new-password", "secret")
    ann = {"LANEWAY_USER": "ann", "LANEWAY_PASSWORD": "secret"}
    run("account", "create", "maker", "--configure", "orders*", "--no-password", **ann)
    key = run("key", "create", "maker", **ann).stdout.strip()
    assert "no configure permission" in run("queue", "create", "other", LANEWAY_KEY=key, code=1).stderr
    run("queue", "create", "orders.eu", "--lease", "5m", **ann)
    run("queue", "create", "orders", LANEWAY_KEY=key)
    assert "already" in run("queue", "create", "orders", LANEWAY_KEY=key, code=1).stderr
    overview = run("stats", LANEWAY_KEY=key)
    assert overview.stdout == "" and overview.stderr.endswith("nothing is shown of orders, orders.eu\n")
    run("account", "change", "maker", "--read", "orders.eu", "--configure", "orders", **ann)
    overview = run("stats", LANEWAY_KEY=key)
    assert "orders.eu" in overview.stdout and overview.stderr.endswith("nothing is shown of orders\n")


def test_everybody_changes_their_own_password(start_server: StartServer) -> None:
    run = runner(start_server().url)
    run("account", "create", "bob", "--new-password", "old", "--role", "monitor")
    bob = {"LANEWAY_USER": "bob", "LANEWAY_PASSWORD": "old"}
    assert "needs the role admin" in run("account", "change", "bob", "--role", "admin", code=1, **bob).stderr
    run("account", "change", "bob", "--new-password", "new", **bob)
    run("stats", code=1, **bob)
    run("stats", **{**bob, "LANEWAY_PASSWORD": "new"})
    assert (
        "no account 'nobody'"
        in run(
            "account", "change", "nobody", "--role", "user", code=1, LANEWAY_USER="guest", LANEWAY_PASSWORD="guest"
        ).stderr
    )


# --- serve


def test_a_server_stops_gracefully_and_leases_stay_valid_across_the_restart(start_server: StartServer) -> None:
    first = start_server()
    run = runner(first.url)
    run("queue", "create", "kept")
    run("send", "kept", "--lines", stdin="1\n2\n")
    [leased] = json_lines(run("receive", "kept", "--lease", "1h", "--json"))
    assert first.stop(signal.SIGTERM) == 0, first.output

    second = start_server(data=first.data)
    run = runner(second.url)
    assert [one["payload"] for one in json_lines(run("receive", "kept", "--max", "10", "--json"))] == [2]
    assert run("ack", "kept", leased["receipt_handle"]).stdout == "acked 1 message\n"
    assert second.stop(signal.SIGINT) == 0, second.output


def test_accounts_survive_kill_9(start_server: StartServer) -> None:
    first = start_server()
    runner(first.url)("account", "create", "ann", "--role", "admin", "--new-password", "secret")
    key = runner(first.url)("key", "create", "ann", "--user", "ann", "--password", "secret").stdout.strip()
    first.stop(signal.SIGKILL)
    run = runner(start_server(data=first.data).url)
    run("stats", code=1)
    run("account", "list", "--user", "ann", "--password", "secret")
    run("account", "list", "--key", key)


def fails_to_serve(*flags: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "laneway", "serve", *flags], cwd=cwd, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith("laneway: ")]
    return said


def test_a_folder_in_use_is_refused_with_one_line(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    said = fails_to_serve("--data", str(server.data), "--http", "127.0.0.1:0", cwd=tmp_path)
    assert "is in use by process" in said and "another data folder" in said


def test_a_data_folder_that_cannot_be_made_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = fails_to_serve("--data", "file", "--http", "127.0.0.1:0", cwd=tmp_path)
    assert "cannot use the data folder file" in said and "--data" in said


def test_a_port_in_use_is_refused_with_one_line(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    said = fails_to_serve("--data", "other", "--http", server.url.removeprefix("http://"), cwd=tmp_path)
    assert "cannot listen on" in said and "somebody listens there already" in said and "--http" in said


@pytest.mark.parametrize("setting", ["http", "amqp"])
def test_listening_beyond_loopback_with_guest_alone_is_refused(tmp_path: Path, setting: str) -> None:
    said = fails_to_serve("--http", "127.0.0.1:0", f"--{setting}", "0.0.0.0:0", cwd=tmp_path)
    assert f"{setting} is 0.0.0.0:0" in said and "`laneway account create" in said


def test_a_port_of_amqp_in_use_is_refused_with_one_line(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    used = re.search(r"amqp://(\S+)", server.output)
    assert used is not None
    said = fails_to_serve("--data", "other", "--http", "127.0.0.1:0", "--amqp", used[1], cwd=tmp_path)
    assert "cannot listen on" in said and "perhaps RabbitMQ" in said and "--amqp HOST:PORT, or off" in said


def test_settings_come_from_the_file_and_the_environment(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "laneway.toml").write_text("max_queues = 1\n")
    run = runner(start_server(env={"LANEWAY_LOG_FORMAT": "json"}).url)
    run("queue", "create", "one")
    assert "1" in run("queue", "create", "two", code=1).stderr


# --- journal


def test_a_journal_is_checked_and_dumped(start_server: StartServer) -> None:
    server = start_server()
    run = runner(server.url)
    run("queue", "create", "dumped")
    run("send", "dumped", "1")
    run("receive", "dumped", "--ack")
    server.stop()
    assert "intact: " in run("journal", "check", str(server.data)).stdout
    assert json.loads(run("journal", "check", str(server.data), "--json").stdout)["is_sound"] is True
    events = json_lines(run("journal", "dump", str(server.data)))
    kinds = [event["kind"] for event in events]
    assert "published" in kinds and "acked" in kinds
    assert len(json_lines(run("journal", "dump", str(server.data), "--limit", "1"))) == 1
    assert {event["kind"] for event in json_lines(run("journal", "dump", str(server.data), "--kind", "acked"))} == {
        "acked"
    }


def test_a_damaged_journal_is_found(start_server: StartServer) -> None:
    server = start_server()
    run = runner(server.url)
    run("queue", "create", "damaged")
    run("send", "damaged", "--lines", stdin="\n".join(["x" * 1000] * 50))
    server.stop()
    largest = max((path for path in server.data.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[20_000] ^= 0xFF
    largest.write_bytes(content)
    found = run("journal", "check", str(server.data), code=1)
    assert re.search(rf"problem: .*{largest.name}, byte \d+: ", found.stdout)
    assert "keep a copy" in found.stderr
    assert json.loads(run("journal", "check", str(server.data), "--json", code=1).stdout)["is_sound"] is False
    said = fails_to_serve("--data", str(server.data), "--http", "127.0.0.1:0", cwd=server.data.parent)
    assert "`laneway journal check " in said


def test_a_folder_without_a_journal_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    assert "there is no journal in" in runner("http://127.0.0.1:1")("journal", "check", str(tmp_path), code=1).stderr
    assert (
        "no kind of event"
        in runner("http://127.0.0.1:1")("journal", "dump", str(tmp_path), "--kind", "x", code=1).stderr
    )


def test_a_rebalancing_plan_is_set_shown_and_cleared(run: Run, tmp_path: Path) -> None:
    run("queue", "create", "hot-orders")
    plan = {
        "format": 1,
        "by": "key",
        "partition_count": 2,
        "partitions": [{"partition": 0, "per_second": 9.5, "is_hot": True}],
        "moves": [{"vhost": "/", "queue_name": "hot-orders", "key": "vip", "per_second": 4.5, "from": 0, "to": 1}],
        "splits": [],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert run("rebalancing", "set", str(tmp_path / "plan.json")).stdout == "kept: 1 move, 0 splits\n"
    shown = run("rebalancing", "show").stdout
    assert "hot-orders" in shown and "0 → 1" in shown and "vip" in shown
    assert json.loads(run("rebalancing", "show", "--json").stdout)["plan"] == plan
    run("rebalancing", "clear")
    assert "no rebalancing plan" in run("rebalancing", "show", code=1).stderr
    (tmp_path / "plan.json").write_text("{")
    assert "is not JSON" in run("rebalancing", "set", str(tmp_path / "plan.json"), code=2).stderr


def test_cursors_are_set_listed_and_deleted(run: Run, queue: str) -> None:
    run("send", queue, "1")
    assert run("cursor", "set", "nightly", "first").stdout == "nightly is at 1\n"
    assert run("cursor", "set", "nightly", "2").stdout == "nightly is at 2\n"
    assert "moves forward only" in run("cursor", "set", "nightly", "1", code=1).stderr
    run("cursor", "set", "nightly", "1", "--rewind")
    (cursor,) = [json.loads(line) for line in run("cursor", "list", "--json").stdout.splitlines()]
    assert (cursor["name"], cursor["position"], cursor["state"]) == ("nightly", 1, "ok")
    assert "nightly" in run("cursor", "list").stdout
    end = int(run("cursor", "set", "nightly", "end").stdout.split()[-1])
    assert end > 3
    assert "a position is a number, first or end" in run("cursor", "set", "nightly", "soon", code=2).stderr
    assert run("cursor", "delete", "nightly", "--yes").stdout == "deleted nightly\n"
    assert run("cursor", "delete", "nightly", "--yes", code=1).stderr.startswith("laneway: there is no cursor")


# --- what people get wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("send", "q", "x", "--delay", "20m"), ("--delay", "20m is too long", "15m", "--at")),
        (("send", "q", "x", "--at", "tomorrow"), ("--at", "'tomorrow' is no time", "2030-01-31T10:00:00Z")),
        (("send", "q", "x", "--priority", "high"), ("--priority", "'high' is no priority", "0 to 255")),
        (("receive", "q", "--lease", "13h"), ("--lease", "13h is too long", "12h")),
        (("extend", "q", "r", "--lease", "13h"), ("--lease", "13h is too long", "12h")),
        (("queue", "create", "q", "--retention", "15d"), ("--retention", "15d is too long", "14d")),
        (("queue", "create", "q", "--durable", "perhaps"), ("--durable", "'perhaps' is neither true nor false")),
        (("queue", "create", ""), ("'QUEUE'", "it is empty")),
    ],
)
def test_values_that_do_not_fit_are_told_in_words_of_the_flag(
    run: Run, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = run(*arguments, code=2).stderr
    assert all(word in said for word in words) and said.count("\n") == 1


def test_what_only_the_server_knows_is_told_in_words_of_the_flag_too(run: Run, queue: str) -> None:
    assert run("send", queue, "x", "--priority", "200", code=1).stderr.startswith("laneway: --priority: ")
    far = run("send", queue, "x", "--at", "2999-01-01T00:00:00Z", code=1).stderr
    assert far == "laneway: --at: the time is more than 90 days ahead\n"
    assert (
        run("queue", "create", "x", "--max-priority", "999", code=1).stderr == "laneway: --max-priority: at most 255\n"
    )
    assert run("queue", "create", "x", "--max-receives", "0", code=1).stderr == "laneway: --max-receives: at least 1\n"


def test_a_misspelt_queue_is_guessed(run: Run, queue: str) -> None:
    wrong = queue[:-2] + queue[-1]
    assert f"there is no queue '{wrong}': did you mean {queue}?" in run("receive", wrong, code=1).stderr
    assert "did you mean" not in run("receive", "zzzzzz", code=1).stderr


def test_a_time_without_a_zone_is_meant_on_this_machine(run: Run, queue: str) -> None:
    run("send", queue, "x", "--at", "2020-01-01T10:00")  # it is past: visible at once
    assert run("receive", queue, "--ack", "--bodies").stdout == "x\n"


def test_broken_json_is_pointed_out_and_sent_as_text(run: Run, queue: str) -> None:
    done = run("send", queue, '{"id": 1')
    assert "looks like JSON and is none" in done.stderr and "delimiter" in done.stderr
    assert run("receive", queue, "--ack", "--bodies").stdout == '{"id": 1\n'
    assert run("send", queue, "[INFO]", "--content-type", "text/plain").stderr == ""
    assert "is not JSON" in run("send", queue, "{", "--content-type", "application/json", code=1).stderr


def test_a_deduplicated_message_is_said_to_be_one(run: Run) -> None:
    run("queue", "create", "once", "--dedup-window", "5m")
    first = run("send", "once", "x", "--dedup-id", "7")
    again = run("send", "once", "x", "--dedup-id", "7")
    assert first.stderr == "" and again.stdout == first.stdout
    assert "nothing was added" in again.stderr and "'7'" in again.stderr


def test_an_account_that_cannot_be_deleted_is_not_asked_about(run: Run) -> None:
    said = run("account", "delete", "nobody", stdin="y\n", code=1).stderr
    assert "there is no account 'nobody'" in said and "Delete" not in said
    assert "Delete the account 'guest'" in run("account", "delete", "guest", stdin="n\n", code=1).stderr


def test_watched_stats_are_written_into_a_pipe(server: Server, run: Run, queue: str) -> None:
    command = [sys.executable, "-m", "laneway", "stats", "--watch", "--every", "100ms", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        tables = 0
        while tables < 2:
            tables += next(lines).startswith("queue ")
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0
