"""`laneway top`: what each process and partition of a server has to do, which queues are the busiest, what is wrong."""

from __future__ import annotations

from typing import Any

import click

from laneway.cli.kinds import duration as seconds
from laneway.cli.session import CliSession, names_a_server, pass_session
from laneway.cli.show import Rows, duration, print_json, size
from laneway.cli.watching import rounds, show_rounds

_PROCESSES = ("process", "pid", "state", "partitions", "cpu", "memory", "connections")
_PARTITIONS = ("partition", "process", "state", "queues", "waiting", "leased", "delayed", "dead", "oldest", "consumers")
_QUEUES = ("queue", "vhost", "partition", "waiting", "leased", "delayed", "dead", "oldest", "consumers")
_ALERTS = ("alert", "severity", "since", "what")
_RATES = ("in/s", "out/s", "acked/s")
_TURN, _UPTIME = "longest turn", "up"
_SORTS = ("rate", "depth", "age", "dead-letters")


@click.command(short_help="Show what processes, partitions and the busiest queues have to do.")
@click.option("--every", "every_seconds", default="2s", type=seconds, show_default=True, help="How often.")
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many.  [default: at Ctrl-C]")
@click.option("--queues", default=10, type=click.IntRange(0, 100), show_default=True, help="How many queues to show.")
@click.option("--sort", default="rate", type=click.Choice(_SORTS), show_default=True, help="Which queues come first.")
@names_a_server
@pass_session
def top(session: CliSession, every_seconds: float, times: int | None, queues: int, sort: str) -> None:
    """Show the processes and partitions of a server, the busiest queues and the alerts that fire, again and again
    until Ctrl-C. Takes the role monitor or operator.

    \b
    laneway top
    laneway top --every 10s > top.log
    laneway top --sort age           the queues whose messages wait the longest
    laneway top --json --times 1     one line each time

    Rates are those of the last five seconds: messages published, delivered and acked in the partitions that a process
    leads, whichever process took them from their clients.
    """
    with session.client() as client:

        def look() -> dict[str, Any]:
            return client.processes(queues=queues, sort=sort.replace("-", "_")) | {"alerts": client.alerts()}

        found = rounds(look, every_seconds, times)
        if session.json:
            for one in found:
                print_json(one)
        else:
            show_rounds(found, _tables)


def _tables(shown: dict[str, Any]) -> list[Rows]:
    processes, partitions = shown["processes"], shown["partitions"]
    tables = [Rows((*_PROCESSES, *_RATES, _TURN, _UPTIME), list(map(_process, processes)), (*_PROCESSES[4:], *_RATES))]
    tables.append(Rows((*_PARTITIONS, *_RATES), list(map(_partition, partitions)), (*_PARTITIONS[3:], *_RATES)))
    if shown["busiest_queues"]:
        queues = list(map(_queue, shown["busiest_queues"]))
        tables.append(Rows((*_QUEUES, *_RATES), queues, (*_QUEUES[2:], *_RATES)))
    if shown["alerts"]:
        tables.append(
            Rows(_ALERTS, [(a["name"], a["severity"], a["since"], a["summary"]) for a in shown["alerts"]], ())
        )
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


def _partition(one: dict[str, Any]) -> tuple[object, ...]:
    return (one["partition"], one["process"], one["state"], one["queue_count"], *_counts(one), *_rates(one))


def _queue(one: dict[str, Any]) -> tuple[object, ...]:
    return (one["queue_name"], one["vhost"], one["partition"], *_counts(one), *_rates(one))


def _counts(one: dict[str, Any]) -> list[object]:
    counts: list[object] = [one[name] for name in ("waiting", "leased", "delayed", "dead")]
    return [*counts, duration(one["oldest_message_age_seconds"] or 0), one["consumer_count"]]


def _rates(one: dict[str, Any]) -> list[str]:
    rates = [one[f"{what}_per_second"] for what in ("published", "delivered", "acked")]
    return [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates]


def ranges(numbers: list[int]) -> str:
    """0,4,8 for a few; 0,2,…,14 (8) for many; - for none."""
    if len(numbers) <= 4:
        return ",".join(map(str, numbers)) or "-"
    return f"{numbers[0]},{numbers[1]},…,{numbers[-1]} ({len(numbers)})"
