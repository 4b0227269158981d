"""The command `laneway`. This file knows the names of the commands and loads each when it is called.

`laneway --help` and shell completion must feel instant, so nothing but click is imported here, and the one-line helps
stand in the table below (a test keeps them equal to those of the commands).
"""

from __future__ import annotations

from importlib import import_module

import click

from laneway.cli.session import FailingGroup, talks_to_a_server

# name -> (module:attribute, one-line help), in the order of the help page
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("laneway.cli.serve:serve", "Run a server."),
    "config": ("laneway.cli.serve:config", "Show every setting and where it comes from; reload a server's."),
    "queue": ("laneway.cli.queues:queue", "Create, change, list, describe and delete queues."),
    "send": ("laneway.cli.messages:send", "Publish a message, or one for each line of input."),
    "receive": ("laneway.cli.messages:receive", "Lease messages and print them."),
    "ack": ("laneway.cli.settle:ack", "Settle received messages: done, delete them."),
    "release": ("laneway.cli.settle:release", "Give received messages back to their queue."),
    "reject": ("laneway.cli.settle:reject", "Turn received messages into dead letters."),
    "extend": ("laneway.cli.settle:extend", "Set when the leases of received messages end."),
    "peek": ("laneway.cli.messages:peek", "Look at messages without leasing them."),
    "stats": ("laneway.cli.stats:stats", "Show counts and rates of one queue or of all."),
    "top": ("laneway.cli.top:top", "Show what processes, partitions and the busiest queues have to do."),
    "redrive": ("laneway.cli.dead_letters:redrive", "Move dead letters back to where they came from."),
    "purge": ("laneway.cli.dead_letters:purge", "Delete the waiting messages or the dead letters of a queue."),
    "exchange": ("laneway.cli.exchanges:exchange", "List, create, delete exchanges, and publish to them."),
    "binding": ("laneway.cli.exchanges:binding", "List, create and delete bindings of exchanges."),
    "route": ("laneway.cli.exchanges:route", "Show which queues a message would reach, and why."),
    "vhost": ("laneway.cli.vhosts:vhost", "List, create and delete virtual hosts."),
    "connections": (
        "laneway.cli.connections:connections",
        "List connections: an admin sees all, others their own.",
    ),
    "connection": (
        "laneway.cli.connections:connection",
        "Show a connection, or close it, a channel or a consumer of it.",
    ),
    "consumers": ("laneway.cli.connections:consumers", "List the AMQP consumers of a queue."),
    "cursor": ("laneway.cli.cursors:cursor", "List, set and delete cursors of readers of the history."),
    "account": ("laneway.cli.accounts:account", "List, create, change and delete accounts."),
    "key": ("laneway.cli.accounts:key", "Create, list and delete API keys."),
    "journal": ("laneway.cli.journal:journal", "Look into a journal, or copy it."),
    "rebalance": ("laneway.cli.rebalance:rebalance", "Move queues to the partitions where they belong."),
    "rebalancing": ("laneway.cli.rebalancing:rebalancing", "Keep, show and clear the rebalancing plan."),
    "pipeline": ("laneway.cli.pipeline:pipeline", "Run jobs over the history of a queue, on Spark."),
    "demo": ("laneway.cli.demo:demo", "See it all at work: a server, an hour's traffic in a minute, a report."),
    "bench": ("laneway.cli.bench:bench", "Measure a running server with a quick load."),
    "completion": ("laneway.cli.completion:completion", "Print the completion script of a shell."),
}


class Laneway(FailingGroup):
    """The top group, whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"laneway {version('laneway')}")
    except PackageNotFoundError:
        click.echo("laneway, run from its source without being installed")
    ctx.exit()


@click.command(cls=Laneway, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@talks_to_a_server
def cli() -> None:
    """A durable priority message queue.

    \b
    laneway serve                                  run a server in this folder
    laneway queue create orders                    make a queue
    laneway send orders '{"id": 1}' --priority 8   publish a message
    laneway receive orders --ack                   take it
    laneway stats                                  see what waits

    Every command explains itself with --help. Exit codes: 0 done, 1 the server refused or something failed,
    2 wrong usage, 3 the server cannot be reached.
    """


def main() -> None:
    cli(prog_name="laneway")
