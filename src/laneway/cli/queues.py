"""`laneway queue …`: create, change, list, describe and delete queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from laneway.cli import kinds
from laneway.cli.session import (
    CliSession,
    FailingGroup,
    Failure,
    confirm,
    pass_session,
    queue_argument,
    talks_to_a_server,
)
from laneway.cli.show import duration, print_fields, print_json, print_table, size

if TYPE_CHECKING:
    from laneway.client import Client

F = TypeVar("F", bound=Callable[..., Any])

#: flag, name in the API, kind, help
SETTINGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--max-priority", "max_priority", kinds.number, "Highest priority, up to 255."),
    ("--default-priority", "default_priority", kinds.number_or_none, "Of messages that name none; none: the middle."),
    ("--lease", "visibility_timeout", kinds.DurationUpTo("12h"), "How long a message is leased, up to 12h."),
    (
        "--retention",
        "retention_seconds",
        kinds.DurationUpTo("14d", or_none=True),
        "How long a message is kept, up to 14d, or none.",
    ),
    ("--delay", "delay_seconds", kinds.DurationUpTo("15m"), "How long a new message stays hidden, up to 15m."),
    ("--ttl", "message_ttl_seconds", kinds.duration_or_none, "After which a message expires, or none."),
    ("--max-receives", "max_receive_count", kinds.number_or_none, "Receives before a message is dead, or none."),
    ("--dead-letter-queue", "dead_letter_queue", str, "Where dead letters go, or none: they stay here."),
    ("--dead-letter-exchange", "dead_letter_exchange", kinds.name_or_none, "Exchange dead letters go to, or none."),
    ("--dead-letter-routing-key", "dead_letter_routing_key", kinds.name_or_none, "Theirs from then on, or none: kept."),
    ("--keep-dead", "keep_dead", kinds.boolean, "Whether dead letters that have no place to go stay here."),
    ("--max-messages", "max_messages", kinds.number_or_none, "Most waiting messages, or none."),
    ("--max-bytes", "max_bytes", kinds.size_or_none, "Most waiting bytes, or none."),
    (
        "--overflow",
        "overflow",
        click.Choice(["reject", "drop_oldest", "reject_dead_letter"]),
        "What happens when it is full.",
    ),
    (
        "--dedup-window",
        "dedup_window_seconds",
        kinds.DurationUpTo("1d"),
        "How long a dedup id is remembered, up to 1d.",
    ),
    ("--max-message-bytes", "max_message_bytes", kinds.size, "Largest message."),
    ("--durable", "durable", kinds.boolean, "Whether it outlives a restart of the server."),
    ("--auto-delete", "auto_delete", kinds.boolean, "Whether it goes with its last consumer."),
    ("--expires", "expires_seconds", kinds.duration_or_none, "It goes when nobody used it for so long, or none."),
    (
        "--single-active-consumer",
        "single_active_consumer",
        kinds.boolean,
        "Whether one consumer alone gets messages.",
    ),
    ("--retry-delay", "retry_delay_seconds", kinds.duration_or_none, "Wait of a message that comes back, or none."),
    ("--max-retry-delay", "max_retry_delay_seconds", kinds.duration_or_none, "The most it grows to, or none."),
    (
        "--retry-delay-after",
        "retry_delay_after",
        click.Choice(["any", "failure", "return"]),
        "Whether those that failed wait, those that were given back, or any.",
    ),
    ("--tier", "tier", click.Choice(["critical", "normal", "low"]), "How soon its messages are meant to be done."),
    ("--fair", "fair", kinds.boolean, "Whether a tenant that holds much lets quieter ones go first."),
)


def takes_settings(command: F) -> F:
    for flag, name, kind, help in reversed(SETTINGS):
        metavar = {str: "QUEUE"}.get(kind) or getattr(kind, "__name__", "").removesuffix("_or_none").upper() or None
        metavar = "DURATION" if isinstance(kind, kinds.DurationUpTo) else metavar
        command = click.option(flag, name, type=kind, metavar=metavar, help=help)(command)
    return command


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the API takes them."""
    return {name: None if value == kinds.NONE else value for name, value in options.items() if value is not None}


@click.group(cls=FailingGroup, short_help="Create, change, list, describe and delete queues.")
def queue() -> None:
    """Create, change, list, describe and delete queues.

    \b
    laneway queue create orders --max-priority 10 --lease 30s
    laneway queue change orders --dead-letter-queue orders-dead
    laneway queue list --prefix ord
    """


@queue.command(short_help="Make a queue.")
@queue_argument
@takes_settings
@click.option(
    "--argument",
    "arguments",
    multiple=True,
    type=kinds.name_and_value,
    help="Declare it as an AMQP client does, x-max-priority=9; may be repeated.",
)
@click.option("--exist-ok", is_flag=True, help="Do nothing if there is a queue of that name.")
@talks_to_a_server
@pass_session
def create(
    session: CliSession, queue: str, exist_ok: bool, arguments: tuple[tuple[str, str], ...], **settings: Any
) -> None:
    """Make a queue.

    \b
    laneway queue create orders
    laneway queue create orders --max-priority 255 --lease 5m --ttl 1d
    laneway queue create orders --dead-letter-queue orders-dead --max-receives 3
    laneway queue create orders --argument x-max-priority=9 --argument x-dead-letter-exchange=dead
    """
    if arguments:
        settings["arguments"] = {name: kinds.attribute_value(text) for name, text in arguments}
    with session.client() as client:
        there = _if_there(client, queue)
        if there is not None and not exist_ok:
            raise Failure(
                f"there is a queue {queue!r} already: `laneway queue change` changes its settings", code="queue_exists"
            )
        made = there if there is not None else client.put_queue(queue, **given(settings))
    _print_queue(session, made, "exists already" if there is not None else "created")


@queue.command(short_help="Change settings of a queue while it is in use.")
@queue_argument
@takes_settings
@talks_to_a_server
@pass_session
def change(session: CliSession, queue: str, **settings: Any) -> None:
    """Change settings of a queue while it is in use; `none` takes a limit away.

    \b
    laneway queue change orders --lease 2m
    laneway queue change orders --max-messages none
    """
    changes = given(settings)
    if not changes:
        raise click.UsageError("give at least one setting to change")
    with session.client() as client:
        changed = client.change_queue(queue, **changes)
    _print_queue(session, changed, "changed")


@queue.command("list", short_help="List queues.")
@click.option("--prefix", default="", metavar="TEXT", help="Only those whose name begins with this.")
@click.option("--limit", default=100, type=click.IntRange(min=1), show_default=True, help="Most queues to list.")
@talks_to_a_server
@pass_session
def list_(session: CliSession, prefix: str, limit: int) -> None:
    """List queues, in order of their names. With --json, one queue on each line."""
    with session.client() as client:
        found = client.queues(prefix, limit=limit + 1)
        queues = list(islice(found, limit))
        more = next(found, None) is not None
    if session.json:
        for one in queues:
            print_json(one)
    elif queues:
        columns = ("queue", "priorities", "lease", "retention", "max receives", "dead letters to")
        print_table(columns, [_row(one) for one in queues], numeric=("priorities", "max receives"))
    if more:
        click.echo(f"laneway: there are more than {limit}: give --prefix, or a higher --limit", err=True)
    elif not queues and not session.json:
        click.echo("laneway: there are none", err=True)


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["queue_name"],
        f"0–{one['max_priority']}",
        duration(one["visibility_timeout"]),
        duration(one["retention_seconds"]),
        "-" if one["max_receive_count"] is None else one["max_receive_count"],
        one["dead_letter_queue"] or "",
    )


@queue.command(short_help="Show the settings of a queue.")
@queue_argument
@talks_to_a_server
@pass_session
def describe(session: CliSession, queue: str) -> None:
    """Show the settings of a queue."""
    with session.client() as client:
        _print_queue(session, client.queue(queue))


@queue.command(short_help="Delete a queue with all its messages.")
@queue_argument
@click.option("--if-empty", is_flag=True, help="Only if no message is left in it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def delete(session: CliSession, queue: str, if_empty: bool, yes: bool) -> None:
    """Delete a queue with all its messages; asks first, unless --yes or --if-empty is given."""
    if not yes and not if_empty:
        confirm(f"Delete the queue {queue!r} with all its messages?")
    with session.client() as client:
        client.delete_queue(queue, if_empty=if_empty)
    print_json({"deleted": queue}) if session.json else click.echo(f"deleted {queue}")


def _if_there(client: Client, queue: str) -> dict[str, Any] | None:
    """From the list, where whoever may create a queue sees it; describing it would need the permission to read."""
    first = next(client.queues(queue[:255], limit=1), None)
    return first if first is not None and first["queue_name"] == queue else None


def _print_queue(session: CliSession, queue: dict[str, Any], done: str | None = None) -> None:
    if session.json:
        print_json(queue)
    elif done is not None:
        click.echo(f"{queue['queue_name']} {done}")
    else:
        print_fields({name: _shown(name, value) for name, value in queue.items()})


def _shown(name: str, value: Any) -> object:
    if value is None:
        return kinds.NONE
    if name.endswith("_seconds") or name == "visibility_timeout":
        return duration(value)
    if name.endswith("_bytes"):
        return size(value)
    return value
