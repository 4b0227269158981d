"""`laneway top`: what each process of a server has to do, and which queues are the busiest."""

from __future__ import annotations

from typing import Any

import click

from laneway.cli.kinds import duration as seconds
from laneway.cli.session import CliSession, names_a_server, pass_session
from laneway.cli.show import Rows, duration, print_json, size
from laneway.cli.watching import rounds, show_rounds

_PROCESSES = ("process", "pid", "state", "partitions", "cpu", "memory", "connections")
_QUEUES = ("queue", "vhost", "partition", "waiting", "leased")
_RATES = ("in/s", "out/s", "acked/s")
_TURN, _UPTIME = "longest turn", "up"


@click.command(short_help="Show what each process has to do, and the busiest queues.")
@click.option("--every", "every_seconds", default="2s", type=seconds, show_default=True, help="How often.")
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many.  [default: at Ctrl-C]")
@click.option("--queues", default=10, type=click.IntRange(0, 100), show_default=True, help="How many queues to show.")
@names_a_server
@pass_session
def top(session: CliSession, every_seconds: float, times: int | None, queues: int) -> None:
    """Show the processes of a server and the busiest queues, again and again until Ctrl-C. Takes the role monitor or
    operator.

    \b
    laneway top
    laneway top --every 10s > top.log
    laneway top --json --times 1     one line each time

    Rates are those of the last five seconds: messages published, delivered and acked in the partitions that a process
    leads, whichever process took them from their clients.
    """
    with session.client() as client:
        found = rounds(lambda: client.processes(queues=queues), every_seconds, times)
        if session.json:
            for one in found:
                print_json(one)
        else:
            show_rounds(found, _tables)


def _tables(shown: dict[str, Any]) -> list[Rows]:
    processes, queues = shown["processes"], shown["busiest_queues"]
    tables = [Rows((*_PROCESSES, *_RATES, _TURN, _UPTIME), list(map(_process, processes)), (*_PROCESSES[4:], *_RATES))]
    if queues:
        tables.append(Rows((*_QUEUES, *_RATES), list(map(_queue, queues)), (*_QUEUES[2:], *_RATES)))
    return tables


def _process(one: dict[str, Any]) -> tuple[object, ...]:
    partitions = ranges(one["partitions"])
    if one["pid"] is None:
        return (one["process"], "-", one["state"], partitions, *("-" for _ in range(8)))
    return (
        one["process"],
        one["pid"],
        one["state"],
        partitions,
        f"{one['cpu_share']:.0%}",
        size(one["resident_bytes"]),
        one["connection_count"],
        *_rates(one),
        f"{one['longest_turn_ms']} ms",
        duration(one["uptime_seconds"]),
    )


def _queue(one: dict[str, Any]) -> tuple[object, ...]:
    return (one["queue_name"], one["vhost"], one["partition"], one["waiting"], one["leased"], *_rates(one))


def _rates(one: dict[str, Any]) -> list[str]:
    rates = [one[f"{what}_per_second"] for what in ("published", "delivered", "acked")]
    return [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates]


def ranges(numbers: list[int]) -> str:
    """0,4,8 for a few; 0,2,…,14 (8) for many; - for none."""
    if len(numbers) <= 4:
        return ",".join(map(str, numbers)) or "-"
    return f"{numbers[0]},{numbers[1]},…,{numbers[-1]} ({len(numbers)})"
