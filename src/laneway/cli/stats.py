"""`laneway stats`: what waits, what is leased, what is dead, and how fast things move."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from laneway.cli.kinds import duration as seconds
from laneway.cli.session import CliSession, complete_queue, pass_session, talks_to_a_server
from laneway.cli.show import Rows, duration, print_json, print_rows, size
from laneway.cli.watching import rounds, show_rounds

if TYPE_CHECKING:
    from laneway.client import Client

COLUMNS = ("queue", "waiting", "delayed", "leased", "dead", "oldest", "bytes", "in/s", "out/s", "acked/s")
RATES = ("published", "delivered", "acked")


@click.command(short_help="Show counts and rates of one queue or of all.")
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=complete_queue)
@click.option("--watch", is_flag=True, help="Show them again and again, until Ctrl-C.")
@click.option(
    "--every", "every_seconds", default="2s", type=seconds, show_default=True, help="How often, with --watch."
)
@click.option("--prefix", default="", metavar="TEXT", help="Only queues whose name begins with this.")
@click.option("--limit", default=100, type=click.IntRange(min=1), show_default=True, help="Most queues to show.")
@talks_to_a_server
@pass_session
def stats(session: CliSession, queue: str | None, watch: bool, every_seconds: float, prefix: str, limit: int) -> None:
    """Show counts and rates of QUEUE in full, or of all queues in one line each.

    \b
    laneway stats
    laneway stats orders
    laneway stats --watch --prefix orders.
    laneway stats --json          one line for each queue
    """
    unread: set[str] = set()
    with session.client() as client:

        def fetch() -> list[dict[str, Any]]:
            return [client.stats(queue)] if queue is not None else _all(client, prefix, limit, unread)

        def render(found: list[dict[str, Any]]) -> Rows:
            return _one(found[0]) if queue is not None else _many(found)

        times = None if watch else 1
        if session.json:
            for found in rounds(fetch, every_seconds, times):
                for one in found:
                    print_json(one)
        elif watch:
            show_rounds(rounds(fetch, every_seconds), lambda found: [render(found)])
        else:
            found = fetch()
            if found:
                print_rows(render(found))
            if unread:
                names = ", ".join(sorted(unread))
                click.echo(f"laneway: without the permission to read, nothing is shown of {names}", err=True)
            elif not found:
                click.echo("laneway: there are no queues", err=True)
            if queue is None and len(found) + len(unread) == limit:
                click.echo(f"laneway: showing the first {limit}: give --prefix, or a higher --limit", err=True)


def _all(client: Client, prefix: str, limit: int, unread: set[str]) -> list[dict[str, Any]]:
    """The counts of all queues the account may read; what else it may see in the list is added to `unread`."""
    from laneway.client import ClientError

    found = []
    for queue in islice(client.queues(prefix, limit=limit), limit):
        try:
            found.append(client.stats(queue["queue_name"]))
        except ClientError as error:
            if error.code == "forbidden":
                unread.add(queue["queue_name"])
            elif error.code != "queue_not_found":  # deleted since it was listed
                raise
    return found


def _many(found: list[dict[str, Any]]) -> Rows:
    rows = [
        (
            one["queue_name"],
            one["approximate_message_count"] - one["delayed_count"],
            one["delayed_count"],
            one["in_flight_count"],
            one["dlq_count"],
            duration(one["oldest_message_age_seconds"]),
            size(one["waiting_bytes"]),
            *(_rate(one["rates"][name]["per_second_1m"]) for name in RATES),
        )
        for one in found
    ]
    return Rows(COLUMNS, rows, COLUMNS[1:])


def _one(one: dict[str, Any]) -> Rows:
    by_priority = sorted(one["messages_by_priority"].items(), key=lambda pair: -int(pair[0]))
    rows: list[tuple[str, object]] = [
        ("queue", one["queue_name"]),
        ("waiting", one["approximate_message_count"] - one["delayed_count"]),
        *((f"  of priority {priority}", count) for priority, count in by_priority),
        ("delayed", one["delayed_count"]),
        ("leased", one["in_flight_count"]),
        ("dead letters", one["dlq_count"]),
        ("oldest", duration(one["oldest_message_age_seconds"])),
        ("waiting bytes", size(one["waiting_bytes"])),
        ("consumers waiting", one["consumers_waiting"]),
        ("AMQP consumers", one["subscriber_count"]),
        *(("noisy tenant", name) for name in one["noisy_tenants"]),
    ]
    for name, rates in one["rates"].items():
        rates_shown = " · ".join(
            f"{_rate(rates[f'per_second_{span}'])}/s over {words}"
            for span, words in (("1s", "1 s"), ("1m", "1 min"), ("5m", "5 min"))
        )
        rows.append((name, rates_shown))
    rows.extend((f"{name} so far", count) for name, count in one["totals"].items())
    return Rows(("", ""), rows)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
