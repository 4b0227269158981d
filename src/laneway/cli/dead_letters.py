"""`laneway redrive` and `laneway purge`: getting dead letters, or everything, out of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from laneway.cli.kinds import REASONS, duration, name_and_value
from laneway.cli.session import (
    CliSession,
    Failure,
    complete_queue,
    confirm,
    pass_session,
    queue_argument,
    talks_to_a_server,
)
from laneway.cli.show import print_json, progress

if TYPE_CHECKING:
    from laneway.client import Client

F = TypeVar("F", bound=Callable[..., Any])

POLL_SECONDS = (0.05, 0.1, 0.2, 0.5)  # the last again and again


def takes_filters(command: F) -> F:
    """Which dead letters: by id, reason, attribute and age."""
    options = (
        click.option("--id", "message_ids", multiple=True, metavar="ID", help="This message; may be repeated."),
        click.option("--reason", type=click.Choice(REASONS), help="Dead for this reason."),
        click.option("--attribute", type=name_and_value, help="With this attribute."),
        click.option("--older-than", "older_than_seconds", type=duration, help="Dead for longer than this."),
        click.option("--newer-than", "newer_than_seconds", type=duration, help="Dead for less than this."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filters(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "message_ids" in given and len(given) > 1:
        raise click.UsageError("--id names the messages already: leave the other filters out")
    return given


@click.command(short_help="Move dead letters back to where they came from.")
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=complete_queue)
@takes_filters
@click.option("--to", "target", metavar="QUEUE", help="To this queue, instead of where each came from.")
@click.option("--rate", "max_per_second", type=click.IntRange(min=1), metavar="N", help="At most so many a second.")
@click.option("--no-wait", is_flag=True, help="Begin, print the task, and do not wait for its end.")
@click.option("--cancel", "cancelled", metavar="TASK", help="Cancel a redrive that is running.")
@click.option("--status", "asked", metavar="TASK", help="Show how far a redrive is.")
@talks_to_a_server
@pass_session
def redrive(
    session: CliSession,
    queue: str | None,
    target: str | None,
    max_per_second: int | None,
    no_wait: bool,
    cancelled: str | None,
    asked: str | None,
    **options: Any,
) -> None:
    """Move dead letters of QUEUE back to where they came from, all or those that match.

    \b
    laneway redrive orders-dead
    laneway redrive orders-dead --reason expired --newer-than 1d --rate 100
    laneway redrive orders-dead --id ID --id ID --to orders-retry
    laneway redrive orders-dead --no-wait
    laneway redrive --status TASK
    laneway redrive --cancel TASK

    It runs on the server: Ctrl-C ends the waiting, not the redrive.
    """
    filters = _filters(options)
    if sum(one is not None for one in (queue, cancelled, asked)) != 1:
        raise click.UsageError("give the QUEUE whose dead letters to move, or --cancel TASK, or --status TASK")
    elsewhere = None
    with session.client() as client:
        if cancelled is not None:
            task = client.cancel_task(cancelled)
        elif asked is not None:
            task = client.task(asked)
        else:
            task = client.redrive(str(queue), target=target, max_per_second=max_per_second, **filters)
            if not no_wait:
                task = _wait(session, client, task)
            if task["matched"] == 0:
                elsewhere = _where_dead_letters_go(client, str(queue))
    if session.json:
        print_json(task)
    else:
        click.echo(_sentence(task))
        if task["matched"] == 0 and elsewhere is not None:
            click.echo(f"laneway: dead letters of {queue!r} go to {elsewhere}: redrive that one", err=True)
    if cancelled is None and asked is None and (task["state"] == "failed" or task["failed"]):
        raise Failure(task["error"] or f"{task['failed']} dead letters could not be moved", code="task_failed")


def _wait(session: CliSession, client: Client, task: dict[str, Any]) -> dict[str, Any]:
    try:
        with progress(as_json=session.json) as bar:
            shown = bar.add_task("moved", total=task["matched"]) if bar is not None else None
            polls = 0
            while task["state"] == "running":
                time.sleep(POLL_SECONDS[min(polls, len(POLL_SECONDS) - 1)])
                polls += 1
                task = client.task(task["task_id"])
                if bar is not None and shown is not None:
                    bar.update(shown, completed=task["moved"] + task["failed"], total=task["matched"])
    except KeyboardInterrupt:
        task_id = task["task_id"]
        raise Failure(
            f"the redrive goes on without you: `laneway redrive --status {task_id}` shows how far it is, "
            f"`laneway redrive --cancel {task_id}` stops it",
            code="interrupted",
        ) from None
    return task


def _where_dead_letters_go(client: Client, queue: str) -> str | None:
    """In words; None if they stay in the queue, or if that is not for this account to know."""
    from laneway.client import ClientError

    try:
        info = client.queue(queue)
    except ClientError:
        return None
    named, exchange, key = (info[f"dead_letter_{what}"] for what in ("queue", "exchange", "routing_key"))
    if named is None and exchange == "":
        named = key  # the default exchange leads to the queue of that name
    if named is not None:
        return repr(named)
    return f"a queue behind exchange {exchange!r}" if exchange else None


def _sentence(task: dict[str, Any]) -> str:
    matched = "" if task["matched"] is None else f" of {task['matched']}"
    failed = f", {task['failed']} could not be moved" if task["failed"] else ""
    return f"{task['task_id']} {task['state']}: moved {task['moved']}{matched}{failed}"


@click.command(short_help="Delete the waiting messages or the dead letters of a queue.")
@queue_argument
@click.option("--dead", is_flag=True, help="Delete dead letters, all or those that match, instead of what waits.")
@takes_filters
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def purge(session: CliSession, queue: str, dead: bool, yes: bool, **options: Any) -> None:
    """Delete the waiting messages of QUEUE or, with --dead, its dead letters. Asks first, unless --yes is given.

    \b
    laneway purge orders
    laneway purge orders-dead --dead --older-than 30d --yes
    """
    filters = _filters(options)
    if filters and not dead:
        raise click.UsageError("only dead letters can be chosen: add --dead, or leave the filters out")
    what = ("those dead letters" if filters else "all dead letters") if dead else "all waiting messages"
    if not yes:
        confirm(f"Delete {what} of {queue!r}? There is no way back.")
    with session.client() as client:
        count = client.delete_dead_letters(queue, all=not filters, **filters) if dead else client.purge(queue)
    if session.json:
        print_json({"deleted" if dead else "purged": count})
    else:
        click.echo(f"deleted {count} {'dead letter' if dead else 'message'}{'' if count == 1 else 's'}")
