"""`laneway cursor …`: how far the readers of the history are, and what is kept for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laneway.cli.session import CliSession, FailingGroup, confirm, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table, size

if TYPE_CHECKING:
    from laneway.client import Client

cursor_argument = click.argument("name", metavar="NAME")


@click.group(cls=FailingGroup, short_help="List, set and delete cursors of readers of the history.")
def cursor() -> None:
    """List, set and delete cursors. History from a cursor on is kept until its reader has moved on.

    \b
    laneway cursor list
    laneway cursor set nightly first
    laneway cursor delete nightly
    """


@cursor.command("list", short_help="List cursors, and alarms about the history.")
@talks_to_a_server
@pass_session
def list_(session: CliSession) -> None:
    """List cursors, how far behind they are, what is kept for them; alarms too. With --json, a cursor on each line."""
    with session.client() as client:
        cursors = client.cursors()
        alarms = [alarm for journal in _journals(client) for alarm in journal["alarms"]]
    if session.json:
        for one in cursors:
            print_json(one)
    else:
        print_table(
            ("cursor", "position", "behind", "holds", "state", "updated"),
            [
                (c["name"], _positions(c), c["lag_commits"], size(c["held_bytes"]), c["state"], c["updated_at"])
                for c in cursors
            ],
            numeric=("position", "behind", "holds"),
        )
    for alarm in alarms:
        click.echo(f"{alarm['level']}: {alarm['message']}", err=True)


@cursor.command("set", short_help="Make a cursor, or move one.")
@cursor_argument
@click.argument("position", metavar="POSITION|first|end|N:POSITION,…")
@click.option("--rewind", is_flag=True, help="Move it back too, as far as history is still there.")
@talks_to_a_server
@pass_session
def set_(session: CliSession, name: str, position: str, rewind: bool) -> None:
    """Keep history from a commit on: the first that is there, the end, or any position between.

    On a server with several partitions, first or end of each, or the position in each: 0:1200,1:77.
    """
    with session.client() as client:
        made = client.put_cursor(name, _wanted(position, client), rewind=rewind)
    print_json(made) if session.json else click.echo(f"{name} is at {_positions(made)}")


def _wanted(text: str, client: Client) -> int | dict[int, int]:
    """By partition, or as a number where only one is said."""
    if text in ("first", "end"):
        found = [
            journal["first_position"] if text == "first" else journal["end"]["position"]
            for journal in _journals(client)
        ]
        return {partition: int(position) for partition, position in enumerate(found)}
    if _is_number(text):
        return int(text)
    parts = [part.partition(":") for part in text.split(",")]
    if not all(_is_number(partition) and _is_number(position) for partition, _, position in parts):
        raise click.UsageError(
            f"a position is a number, first or end, or one for each partition, as in 0:1200,1:77, not {text!r}"
        )
    return {int(partition): int(position) for partition, _, position in parts}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16


def _journals(client: Client) -> list[dict[str, Any]]:
    """The history of each partition."""
    first = client.journal()
    return [first, *(client.journal(partition) for partition in range(1, first["partition_count"]))]


def _positions(cursor: dict[str, Any]) -> str:
    parts = cursor["partitions"]
    if len(parts) == 1 and parts[0]["partition"] == 0:
        return str(cursor["position"])
    return ",".join(f"{part['partition']}:{part['position']}" for part in parts)


@cursor.command(short_help="Delete a cursor.")
@cursor_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def delete(session: CliSession, name: str, yes: bool) -> None:
    """Delete a cursor; what only it held back goes. Asks first, unless --yes is given."""
    if not yes:
        confirm(f"Delete the cursor {name!r} and the history that is kept for it alone?")
    with session.client() as client:
        client.delete_cursor(name)
    print_json({"deleted": name}) if session.json else click.echo(f"deleted {name}")
