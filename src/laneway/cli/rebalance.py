"""`laneway rebalance`: queues move to the partitions where they belong, while they are used."""

from __future__ import annotations

import time
from typing import Any

import click

from laneway.cli.kinds import duration as seconds
from laneway.cli.session import CliSession, names_a_server, pass_session
from laneway.cli.show import print_json, print_table
from laneway.client import Client

_COLUMNS = ("vhost", "queue", "from", "to")


@click.command(short_help="Move queues to the partitions where they belong.")
@click.option("--queue", metavar="NAME", help="This queue alone.  [default: all that are not at home]")
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="… to this partition.  [default: its home]")
@click.option("--all", "is_all", is_flag=True, help="Also queues that were moved by name before.")
@click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing.")
@click.option("--status", is_flag=True, help="Show how far it is.")
@click.option("--cancel", is_flag=True, help="Leave queues that have not begun to move where they are.")
@click.option("--no-wait", is_flag=True, help="Do not wait until all have moved.")
@click.option("--every", "every_seconds", default="1s", type=seconds, show_default=True, help="How often to look.")
@names_a_server
@pass_session
def rebalance(
    session: CliSession,
    queue: str | None,
    to: int | None,
    is_all: bool,
    dry_run: bool,
    status: bool,
    cancel: bool,
    no_wait: bool,
    every_seconds: float,
) -> None:
    """Move queues to the partitions that are their homes, one after the other, while they are used. Clients notice a
    pause. Takes the role admin.

    \b
    laneway rebalance --dry-run
    laneway rebalance
    laneway rebalance --queue orders --to 2     and it stays there
    laneway rebalance --status

    After `laneway serve --partitions N` with a higher number than before, new queues are made in all partitions, and
    the others stay where they are until this moves them. Ctrl-C ends the waiting, not the moves.
    """
    if sum((dry_run, status, cancel)) > 1:
        raise click.UsageError("--dry-run, --status and --cancel exclude each other")
    if (status or cancel) and (queue is not None or to is not None or is_all):
        raise click.UsageError("--status and --cancel are about all moves: leave --queue, --to and --all out")
    if to is not None and queue is None:
        raise click.UsageError("--to goes with --queue")
    with session.client() as client:
        if status:
            _show_status(session, client.rebalance_status())
        elif cancel:
            cancelled = client.cancel_rebalance()
            print_json({"cancelled": cancelled}) if session.json else click.echo(
                f"{cancelled} will stay where they are"
            )
        else:
            begun = client.rebalance(queue, to=to, all=is_all, dry_run=dry_run)
            _show_moves(session, begun)
            if begun["move_count"] and not dry_run and not no_wait:
                _follow(session, client, every_seconds)


def _show_moves(session: CliSession, begun: dict[str, Any]) -> None:
    if session.json:
        print_json(begun)
        return
    rows = [(one["vhost"], one["queue_name"], one["from"], one["to"]) for one in begun["moves"]]
    if rows:
        print_table(_COLUMNS, rows, numeric=_COLUMNS[2:])
    more = begun["move_count"] - len(rows)
    if more:
        click.echo(f"… and {more} more")
    if not begun["move_count"]:
        click.echo("every queue is where it belongs")


def _follow(session: CliSession, client: Client, every_seconds: float) -> None:
    """Until nothing is left to move; a line for each look."""
    try:
        while (found := client.rebalance_status())["is_running"]:
            if not session.json:
                click.echo(_in_words(found))
            time.sleep(every_seconds)
    except KeyboardInterrupt:
        click.echo("the queues go on moving; see laneway rebalance --status", err=True)
        return
    _show_status(session, found)
    if found["failed"]:
        raise click.exceptions.Exit(1)


def _show_status(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        print_json(found)
        return
    click.echo(_in_words(found))
    if found["failed"]:
        rows = [(one["vhost"], one["queue_name"], one["from"], one["to"], one["why"]) for one in found["failed"]]
        print_table((*_COLUMNS, "why it stays"), rows, numeric=_COLUMNS[2:])


def _in_words(found: dict[str, Any]) -> str:
    now = "".join(
        f", {one['queue_name']} on its way from {one['from']} to {one['to']} "
        f"({one['moved_messages']} of {one['messages']} messages)"
        for one in found["under_way"]
    )
    moved, messages = found["moved_queues"], found["moved_messages"]
    return f"{moved} moved with {messages} messages, {found['waiting']} waiting, {len(found['failed'])} stay{now}"
