"""`laneway cursor …`: how far the readers of the history are, and what is kept for them."""

from __future__ import annotations

from typing import Any

import click

from laneway.cli.session import CliSession, FailingGroup, confirm, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table, size

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
        cursors, alarms = client.cursors(), client.journal()["alarms"]
    if session.json:
        for one in cursors:
            print_json(one)
    else:
        print_table(
            ("cursor", "position", "behind", "holds", "state", "updated"),
            [
                (c["name"], c["position"], c["lag_commits"], size(c["held_bytes"]), c["state"], c["updated_at"])
                for c in cursors
            ],
            numeric=("position", "behind", "holds"),
        )
    for alarm in alarms:
        click.echo(f"{alarm['level']}: {alarm['message']}", err=True)


@cursor.command("set", short_help="Make a cursor, or move one.")
@cursor_argument
@click.argument("position", metavar="POSITION|first|end")
@click.option("--rewind", is_flag=True, help="Move it back too, as far as history is still there.")
@talks_to_a_server
@pass_session
def set_(session: CliSession, name: str, position: str, rewind: bool) -> None:
    """Keep history from a commit on: the first that is there, the end, or any position between."""
    with session.client() as client:
        at = _position(position, client.journal() if position in ("first", "end") else None)
        made = client.put_cursor(name, at, rewind=rewind)
    print_json(made) if session.json else click.echo(f"{name} is at {made['position']}")


def _position(text: str, journal: dict[str, Any] | None) -> int:
    if journal is not None:
        return int(journal["first_position"] if text == "first" else journal["end"]["position"])
    if not (text.isascii() and text.isdigit()):
        raise click.UsageError(f"a position is a number, first or end, not {text!r}")
    return int(text)


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
