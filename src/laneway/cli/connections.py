"""`laneway connections`, `laneway connection …` and `laneway consumers`: who is connected, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from laneway.cli.session import CliSession, FailingGroup, pass_session, queue_argument, talks_to_a_server
from laneway.cli.show import print_fields, print_json, print_table

connection_argument = click.argument("connection_id", metavar="ID")
limit_option = click.option("--limit", default=100, type=click.IntRange(min=1), show_default=True, help="Most to list.")

_SHOWN_CHANNELS = 1000  # and consumers, of one connection


@click.command(short_help="List connections: an admin sees all, others their own.")
@click.option("--protocol", type=click.Choice(["amqp", "http"]), help="Only those.")
@click.option("--account", metavar="NAME", help="Only those of this account.")
@limit_option
@talks_to_a_server
@pass_session
def connections(session: CliSession, protocol: str | None, account: str | None, limit: int) -> None:
    """List connections, the oldest first: an admin sees all, others their own. With --json, one on each line.

    \b
    laneway connections --protocol amqp
    laneway connection show ID
    laneway connection close ID --reason 'deploying'
    """
    with session.client() as client:
        found = client.connections(protocol=protocol, account=account, limit=limit + 1)
        if _print_list(session, found, limit, _CONNECTIONS, _connection_row):
            click.echo("laneway: there are none", err=True)


_CONNECTIONS = ("connection", "protocol", "account", "address", "state", "since", "channels", "consumers", "unacked")


def _connection_row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["connection_id"],
        one["protocol"] + ("s" if one["tls"] else ""),
        one["account"] or "",
        one["address"],
        one["state"],
        one["connected_at"],
        one["channel_count"],
        one["consumer_count"],
        one["unacked_count"],
    )


def _print_list(
    session: CliSession, found: Iterator[dict[str, Any]], limit: int, columns: tuple[str, ...], row: Any
) -> bool:
    """Whether a person is to be told that there was nothing."""
    shown = list(islice(found, limit))
    more = next(found, None) is not None
    if session.json:
        for one in shown:
            print_json(one)
    elif shown:
        numeric = ("channels", "consumers", "unacked", "channel", "prefetch", "held", "priority")
        print_table(columns, [row(one) for one in shown], numeric=numeric)
    if more:
        click.echo(f"laneway: there are more than {limit}: give a higher --limit", err=True)
    return not shown and not session.json


@click.group(cls=FailingGroup, short_help="Show a connection, or close it, a channel or a consumer of it.")
def connection() -> None:
    """Show a connection, or close it, a channel or a consumer of it. `laneway connections` lists them."""


@connection.command(short_help="Show a connection with its channels and consumers.")
@connection_argument
@talks_to_a_server
@pass_session
def show(session: CliSession, connection_id: str) -> None:
    """Show a connection with its channels and consumers."""
    with session.client() as client:
        found = client.connection(connection_id)
        channels = list(client.channels(connection_id, limit=_SHOWN_CHANNELS))
        consumers = list(client.consumers_of(connection_id, limit=_SHOWN_CHANNELS))
    if session.json:
        print_json({**found, "channels": channels, "consumers": consumers})
        return
    properties = {f"client {name}": value for name, value in found.pop("client_properties").items()}
    print_fields(
        {name.replace("_", " "): "-" if value is None else value for name, value in found.items()} | properties
    )
    if channels:
        click.echo()
        columns = ("channel", "state", "mode", "consumers", "unacked", "prefetch", "shared prefetch")
        names = ("channel", "state", "mode", "consumer_count", "unacked_count", "prefetch", "shared_prefetch")
        print_table(columns, [[one[name] for name in names] for one in channels], numeric=columns[3:])
    if consumers:
        click.echo()
        print_table(_CONSUMERS, [_consumer_row(one) for one in consumers], numeric=_NUMERIC)


@connection.command(short_help="Close a connection, or only a channel or a consumer of it.")
@connection_argument
@click.option("--channel", type=click.IntRange(min=1), metavar="N", help="Only this channel.")
@click.option("--consumer", type=click.IntRange(min=1), metavar="N", help="Only this consumer.")
@click.option("--reason", metavar="TEXT", help="Told to the client and to the server's log.")
@talks_to_a_server
@pass_session
def close(
    session: CliSession, connection_id: str, channel: int | None, consumer: int | None, reason: str | None
) -> None:
    """Close a connection, or only a channel or a consumer of it: what it held goes back to its queues.

    \b
    laneway connection close ID --reason 'moving to another server'
    laneway connection close ID --consumer 3
    """
    if channel is not None and consumer is not None:
        raise click.UsageError("--channel and --consumer: give one")
    with session.client() as client:
        if channel is not None:
            client.close_channel(connection_id, channel, reason=reason)
            what = f"channel {channel} of {connection_id}"
        elif consumer is not None:
            client.cancel_consumer(connection_id, consumer, reason=reason)
            what = f"consumer {consumer} of {connection_id}"
        else:
            client.close_connection(connection_id, reason=reason)
            what = connection_id
    print_json({"closed": what}) if session.json else click.echo(f"closed {what}")


@click.command(short_help="List the AMQP consumers of a queue.")
@queue_argument
@limit_option
@talks_to_a_server
@pass_session
def consumers(session: CliSession, queue: str, limit: int) -> None:
    """List the AMQP consumers of a queue: where they are, and what they hold. With --json, one on each line.

    Those who receive over HTTP or SQS are no consumers of that kind: `laneway stats QUEUE` counts who waits.
    """
    with session.client() as client:
        if _print_list(session, client.consumers(queue, limit=limit + 1), limit, _CONSUMERS, _consumer_row):
            click.echo("laneway: there are none", err=True)


_CONSUMERS = (
    *("connection", "consumer", "queue", "tag", "account", "channel"),
    *("prefetch", "held", "priority", "ack", "active"),
)
_NUMERIC = ("consumer", "channel", "prefetch", "held", "priority")


def _consumer_row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one.get("connection_id", "-"),
        one["consumer"],
        one["queue_name"],
        one.get("consumer_tag", "-"),
        one.get("account", "-"),
        one.get("channel", "-"),
        one["prefetch"] or "-",
        one["held_count"],
        one["priority"],
        "no" if one["no_ack"] else "yes",
        "yes" if one["is_active"] else "no",
    )
