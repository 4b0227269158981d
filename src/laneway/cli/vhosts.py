"""`laneway vhost …`: list, create and delete virtual hosts."""

from __future__ import annotations

import click

from laneway.cli.session import CliSession, FailingGroup, confirm, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table

vhost_argument = click.argument("name", metavar="NAME")


@click.group(cls=FailingGroup, short_help="List, create and delete virtual hosts.")
def vhost() -> None:
    """List, create and delete virtual hosts.

    \b
    laneway vhost create shop
    laneway queue create orders --vhost shop
    laneway vhost list
    """


@vhost.command("list", short_help="List virtual hosts.")
@talks_to_a_server
@pass_session
def list_(session: CliSession) -> None:
    """List the virtual hosts that the account has permissions in. With --json, one on each line."""
    with session.client() as client:
        vhosts = client.vhosts()
    if session.json:
        for one in vhosts:
            print_json(one)
    else:
        print_table(("vhost", "queues"), [(one["vhost"], one["queue_count"]) for one in vhosts], numeric=("queues",))


@vhost.command(short_help="Make a virtual host.")
@vhost_argument
@talks_to_a_server
@pass_session
def create(session: CliSession, name: str) -> None:
    """Make a virtual host; one that exists stays as it is."""
    with session.client() as client:
        made = client.create_vhost(name)
    print_json(made) if session.json else click.echo(f"{name} exists now")


@vhost.command(short_help="Delete a virtual host with all that is in it.")
@vhost_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def delete(session: CliSession, name: str, yes: bool) -> None:
    """Delete a virtual host with its queues and exchanges; asks first, unless --yes is given."""
    if not yes:
        confirm(f"Delete the virtual host {name!r} with all its queues, messages and exchanges?")
    with session.client() as client:
        client.delete_vhost(name)
    print_json({"deleted": name}) if session.json else click.echo(f"deleted {name}")
