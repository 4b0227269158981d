"""`laneway rebalancing …`: the plan that says which queues or keys are better off in another partition."""

from __future__ import annotations

import json
from pathlib import Path

import click

from laneway.cli.session import CliSession, FailingGroup, names_a_server, pass_session
from laneway.cli.show import print_fields, print_json, print_table


@click.group(cls=FailingGroup, short_help="Keep, show and clear the rebalancing plan.")
def rebalancing() -> None:
    """Keep, show and clear the rebalancing plan, which `laneway pipeline run hotkeys` makes. Needs the role admin.

    \b
    laneway pipeline run hotkeys --source ./data
    laneway rebalancing set warehouse/plan.json
    laneway rebalancing show
    """


@rebalancing.command("set", short_help="Give the server a plan.")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@names_a_server
@pass_session
def set_(session: CliSession, file: str) -> None:
    """Give the server the plan in FILE (- for stdin), in place of the one it has. Its queues must exist."""
    try:
        with click.open_file(file, encoding="utf-8") as opened:
            plan = json.load(opened)
    except ValueError as error:
        raise click.UsageError(f"{Path(file).name} is not JSON: {error}") from error
    with session.client() as client:
        kept = client.put_rebalancing(plan)
    if session.json:
        print_json(kept)
    else:
        moves, splits = (len(kept["plan"][name]) for name in ("moves", "splits"))
        click.echo(f"kept: {moves} move{'' if moves == 1 else 's'}, {splits} split{'' if splits == 1 else 's'}")


@rebalancing.command(short_help="Show the plan that the server has.")
@names_a_server
@pass_session
def show(session: CliSession) -> None:
    """Show the plan that the server has."""
    with session.client() as client:
        kept = client.rebalancing()
    if session.json:
        print_json(kept)
        return
    plan = kept["plan"]
    hot = [str(one["partition"]) for one in plan["partitions"] if one["is_hot"]]
    print_fields(
        {
            "stored": f"{kept['stored_at']} by {kept['stored_by']}",
            "partitions": plan["partition_count"],
            "hot": ", ".join(hot) or "none",
        }
    )
    units = [("move", one, f"{one['from']} → {one['to']}") for one in plan["moves"]]
    units += [("split", one, str(one["partition"])) for one in plan["splits"]]
    if units:
        columns = ("", "vhost", "queue", "key", "per second", "partition")
        rows = [
            (what, one["vhost"], one["queue_name"], one.get("key", "-"), f"{one['per_second']:.4g}", where)
            for what, one, where in units
        ]
        print_table(columns, rows, numeric=("per second",))


@rebalancing.command(short_help="Make the server forget its plan.")
@names_a_server
@pass_session
def clear(session: CliSession) -> None:
    """Make the server forget its plan, if it has one."""
    with session.client() as client:
        client.delete_rebalancing()
    print_json({"cleared": True}) if session.json else click.echo("there is no plan any more")
