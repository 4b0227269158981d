"""`laneway serve` and `laneway config`: their flags are the settings of config.py, one for each."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from laneway.cli.session import REFUSED, CliSession, FailingGroup, names_a_server, pass_session, prints_json
from laneway.cli.show import print_json, print_table
from laneway.config import Config, load_config, settings, wants_json_log
from laneway.errors import LanewayError
from laneway.logs import set_up_logging

F = TypeVar("F", bound=Callable[..., Any])


def takes_settings(command: F) -> F:
    """Give a command a flag for every setting, and --config. Values stay text: config.py reads them all alike."""
    for setting in reversed(settings()):
        command = click.option(
            setting.flag,
            setting.name,
            metavar=setting.values,
            help=f"{setting.help[:1].upper()}{setting.help[1:]}.  [default: {setting.show(setting.default)}]",
        )(command)
    file = click.option(
        "--config",
        "file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A TOML file with settings (LANEWAY_CONFIG).  [default: ./laneway.toml if there is one]",
    )
    return file(command)


def config_in_force(file: Path | None, flags: dict[str, str | None]) -> Config:
    given = {name: value for name, value in flags.items() if value is not None}
    return load_config(given, os.environ, file)


@click.command(short_help="Run a server.")
@takes_settings
@click.pass_context
def serve(ctx: click.Context, /, file: Path | None, **flags: str | None) -> None:
    """Run a server until it is stopped with Ctrl-C or SIGTERM.

    \b
    laneway serve
    laneway serve --data /var/lib/laneway --http 127.0.0.1:8080 --amqp localhost:5672
    laneway serve --https 0.0.0.0:8443 --tls-cert server.pem --tls-key server.key
    laneway serve --config laneway.toml --durability interval

    Every setting can also be given in a TOML file and as a LANEWAY_* variable: `laneway config` shows them all.
    LANEWAY_ADMIN_USER and LANEWAY_ADMIN_PASSWORD (or …_FILE) create the first administrator in an empty folder.
    SIGHUP reads them again, certificates included, as `laneway config reload` does.
    Leases stay valid across a restart; what AMQP connections hold goes back to its place.
    """
    from laneway.first_admin import first_admin
    from laneway.node import serve as serve_node

    def read() -> Config:
        return config_in_force(file, flags)

    try:
        ctx.exit(serve_node(read(), read, first_admin(os.environ)))
    except LanewayError as refusal:
        if not wants_json_log({n: v for n, v in flags.items() if v is not None}, os.environ, file):
            raise
        set_up_logging("error", "json")
        logging.getLogger("laneway.node").critical("%s", refusal)
        ctx.exit(REFUSED)


@click.group(
    cls=FailingGroup,
    invoke_without_command=True,
    short_help="Show every setting and where it comes from; reload a server's.",
)
@takes_settings
@prints_json
@click.pass_context
def config(ctx: click.Context, /, file: Path | None, **flags: str | None) -> None:
    """Show every setting a server started here would have, and where it comes from: a flag, a variable, a file, or its
    default.

    \b
    laneway config
    laneway config --config laneway.toml --json
    LANEWAY_HTTP=127.0.0.1:9090 laneway config
    laneway config reload
    """
    if ctx.invoked_subcommand is not None:
        return
    session = ctx.ensure_object(CliSession)
    in_force = config_in_force(file, flags)
    if session.json:
        print_json(
            {s.name: {"value": _plain(getattr(in_force, s.name)), "from": in_force.origins[s.name]} for s in settings()}
        )
        return
    rows = [(s.name, s.show(getattr(in_force, s.name)), in_force.origins[s.name]) for s in settings()]
    print_table(("setting", "value", "from"), rows)


@config.command("reload", short_help="Have a running server read its settings again.")
@names_a_server
@pass_session
def reload(session: CliSession) -> None:
    """Have a running server read its settings and certificates again, from where it got them when it was started. Takes
    an administrator.

    What can change without a restart is in force at once. If one of the settings is wrong, nothing changes.
    """
    with session.client() as client:
        done = client.reload_config()
    if session.json:
        print_json(done)
        return
    for what, title in (("changed", "changed"), ("read_again", "read again"), ("needs_restart", "needs a restart")):
        if done[what]:
            click.echo(f"{title}: {', '.join(done[what])}")
    if not any(done.values()):
        click.echo("nothing has changed")


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else str(value)
