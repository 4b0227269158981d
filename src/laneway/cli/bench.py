"""`laneway bench`: a quick load against a running server, with rates and latencies."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from laneway.cli.kinds import size
from laneway.cli.session import CliSession, Failure, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table, progress

if TYPE_CHECKING:
    from laneway.cli.load import Phase


@click.command(short_help="Measure a running server with a quick load.")
@click.option("--messages", default=10_000, type=click.IntRange(1, 10_000_000), show_default=True, help="How many.")
@click.option("--size", "body_bytes", default="1KiB", type=size, show_default=True, help="Of each payload.")
@click.option("--batch", default=1, type=click.IntRange(1, 1000), show_default=True, help="Messages in a request.")
@click.option("--connections", default=16, type=click.IntRange(1, 1000), show_default=True, help="At once.")
@click.option("--priorities", default=1, type=click.IntRange(1, 256), show_default=True, help="Spread over so many.")
@click.option("--keep", is_flag=True, help="Do not delete the queue that was made for it.")
@talks_to_a_server
@pass_session
def bench(
    session: CliSession, messages: int, body_bytes: int, batch: int, connections: int, priorities: int, keep: bool
) -> None:
    """Publish messages to a queue of its own, then receive and ack them, and print rates and latencies.

    \b
    laneway bench
    laneway bench --messages 100000 --batch 100 --size 1KiB
    laneway bench --json

    This measures one server through one client process, which is often the slower of the two.
    """
    queue = f"laneway-bench-{secrets.token_hex(4)}"
    with session.client() as client:
        client.put_queue(queue, max_priority=priorities - 1, max_message_bytes=max(body_bytes + 64, 1024))
        try:
            phases = _run(session, queue, messages, body_bytes, batch, connections, priorities)
        finally:
            if not keep:
                client.delete_queue(queue)
    summaries = {phase.name: phase.summary() for phase in phases}
    if session.json:
        print_json({"queue": queue, "batch": batch, "connections": connections, "size_bytes": body_bytes, **summaries})
    else:
        _print_summaries(summaries)


def _run(
    session: CliSession, queue: str, messages: int, body_bytes: int, batch: int, connections: int, priorities: int
) -> list[Phase]:
    import uvloop

    from laneway.cli.load import LoadFailed, Phase, Target, publishing, receiving, run_phase
    from laneway.client import ClientTls

    key, user, password = session.credentials()
    target = Target(session.url(), key, user, password, ClientTls(**session.tls()))
    path = _queue_path(session.vhost(), queue)
    publish, receive, ack = Phase("publish"), Phase("receive"), Phase("ack")
    sending = publishing(f"{path}/messages", _bodies(body_bytes, priorities, batch), messages, batch)

    async def both() -> None:
        with progress(as_json=session.json) as bar:
            for phase, step in ((publish, sending), (receive, receiving(path, messages, batch, ack))):
                task = bar.add_task(phase.name, total=messages) if bar is not None else None

                def told(count: int, task: Any = task) -> None:
                    if bar is not None:
                        bar.update(task, completed=count)

                await run_phase(target, phase, connections, step, told)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            loop.run(both())
    except (LoadFailed, OSError, asyncio.IncompleteReadError) as error:
        raise Failure(f"the measurement ended early: {error}", code="bench_failed") from error
    ack.seconds = receive.seconds  # the two take turns on the same connections
    return [publish, receive, ack]


def _bodies(body_bytes: int, priorities: int, batch: int) -> Any:
    """Encoded requests, one for each priority, so that making them costs the measurement nothing."""
    payload = "x" * body_bytes
    turn = 0
    cache: dict[tuple[int, int], bytes] = {}

    def body(count: int) -> bytes:
        nonlocal turn
        turn = (turn + 1) % priorities
        if (count, turn) not in cache:
            message = {"payload": payload, "priority": turn}
            cache[count, turn] = json.dumps(message if batch == 1 else [message] * count).encode()
        return cache[count, turn]

    return body


def _queue_path(vhost: str, queue: str) -> str:
    return f"/queues/{queue}" if vhost == "/" else f"/vhosts/{quote(vhost, safe='')}/queues/{queue}"


def _print_summaries(summaries: dict[str, dict[str, Any]]) -> None:
    columns = ("", "messages", "messages/s", "requests", "p50 ms", "p90 ms", "p99 ms", "max ms")
    rows = []
    for name, one in summaries.items():
        latency = one["latency_ms"]
        rates = (one["messages"], f"{one['messages_per_second']:,.0f}", one["requests"])
        rows.append((name, *rates, *(latency.get(share, "-") for share in ("p50", "p90", "p99", "max"))))
    print_table(columns, rows, numeric=columns[1:])
