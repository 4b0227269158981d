"""`laneway exchange …`, `laneway binding …` and `laneway route`: what leads where."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import click

from laneway.cli.kinds import attribute_value, name_and_value
from laneway.cli.messages import message_options, options_given, payload_given
from laneway.cli.session import CliSession, FailingGroup, Failure, confirm, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table

F = TypeVar("F", bound=Callable[..., Any])

TYPES = ("direct", "topic", "fanout", "headers")


def complete_exchange(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of exchanges for the shell: quickly, or not at all."""
    session = ctx.find_object(CliSession) or CliSession()
    try:
        with session.client(timeout_seconds=1.0, attempts=1) as client:
            return [one["exchange_name"] for one in client.exchanges(incomplete, limit=100)]
    except Exception:  # whatever it is, a completion has nowhere to say so
        return []


exchange_argument = click.argument("exchange", metavar="EXCHANGE", shell_complete=complete_exchange)


@click.group(cls=FailingGroup, short_help="List, create, delete exchanges, and publish to them.")
def exchange() -> None:
    """List, create and delete exchanges, which send messages on to queues, and publish to them.

    \b
    laneway exchange create orders --type topic
    laneway binding create orders eu-orders --routing-key 'orders.eu.#'
    laneway route orders orders.eu.new
    laneway exchange publish orders orders.eu.new '{"id": 1}'
    """


@exchange.command("list", short_help="List exchanges.")
@click.option("--prefix", default="", metavar="TEXT", help="Only those whose name begins with this.")
@click.option("--limit", default=100, type=click.IntRange(min=1), show_default=True, help="Most exchanges to list.")
@talks_to_a_server
@pass_session
def list_exchanges(session: CliSession, prefix: str, limit: int) -> None:
    """List exchanges, in order of their names. With --json, one exchange on each line."""
    with session.client() as client:
        found = client.exchanges(prefix, limit=limit + 1)
        exchanges = list(islice(found, limit))
        more = next(found, None) is not None
    _print_all(session, ("exchange", "type", "bindings", "features"), exchanges, _exchange_row, numeric=("bindings",))
    if more:
        click.echo(f"laneway: there are more than {limit}: give --prefix, or a higher --limit", err=True)


def _exchange_row(one: dict[str, Any]) -> tuple[object, ...]:
    features = [
        *(["built in"] if one["built_in"] else []),
        *([] if one["durable"] else ["transient"]),
        *(name.replace("_", "-") for name in ("auto_delete", "internal", "delayed") if one[name]),
        *([f"alternate {one['alternate_exchange']}"] if one["alternate_exchange"] is not None else []),
    ]
    return one["exchange_name"], one["type"], one["binding_count"], ", ".join(features)


@exchange.command("create", short_help="Make an exchange.")
@exchange_argument
@click.option("--type", "kind", type=click.Choice(TYPES), default="direct", show_default=True, help="How it chooses.")
@click.option("--alternate", "alternate_exchange", metavar="EXCHANGE", help="Takes what no binding matches.")
@click.option("--auto-delete", is_flag=True, help="It goes with the last binding from it.")
@click.option("--internal", is_flag=True, help="It takes messages from other exchanges alone.")
@click.option("--delayed", is_flag=True, help="Messages wait as long as their attribute x-delay says.")
@click.option("--transient", is_flag=True, help="It is gone after a restart of the server.")
@talks_to_a_server
@pass_session
def create_exchange(session: CliSession, exchange: str, kind: str, transient: bool, **settings: Any) -> None:
    """Make an exchange. One that is there stays as it is, if it is just like that.

    \b
    laneway exchange create orders --type topic --alternate unmatched
    laneway exchange create unmatched --type fanout
    """
    with session.client() as client:
        made = client.put_exchange(exchange, type=kind, durable=not transient, **settings)
    print_json(made) if session.json else click.echo(f"{exchange} exists now")


@exchange.command("delete", short_help="Delete an exchange with its bindings.")
@exchange_argument
@click.option("--if-unused", is_flag=True, help="Only if nothing is bound to it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def delete_exchange(session: CliSession, exchange: str, if_unused: bool, yes: bool) -> None:
    """Delete an exchange with its bindings; asks first, unless --yes or --if-unused is given."""
    if not yes and not if_unused:
        confirm(f"Delete the exchange {exchange!r} with its bindings?")
    with session.client() as client:
        client.delete_exchange(exchange, if_unused=if_unused)
    print_json({"deleted": exchange}) if session.json else click.echo(f"deleted {exchange}")


@exchange.command("publish", short_help="Publish a message through an exchange.")
@exchange_argument
@click.argument("routing_key", metavar="KEY")
@click.argument("body", required=False, metavar="[BODY|-]")
@message_options
@talks_to_a_server
@pass_session
def publish(
    session: CliSession, exchange: str, routing_key: str, body: str | None, content_type: str | None, **options: Any
) -> None:
    """Publish a message to EXCHANGE with the routing key KEY, and print which queues it went to, once it is durable.

    \b
    laneway exchange publish orders orders.eu.new '{"id": 1}' --priority 8
    laneway exchange publish amq.fanout '' - < body.json

    BODY and the options are those of `laneway send`. Exit code 1 if no queue takes the message.
    """
    payload = payload_given(body, content_type)
    with session.client() as client:
        answer = client.publish_to_exchange(exchange or "amq.default", routing_key, **payload, **options_given(options))
    if session.json:
        print_json(answer)
    elif answer["routed"]:
        print_table(("queue", "message"), [(one["queue_name"], one.get("message_id", "")) for one in answer["queues"]])
    if not answer["routed"]:
        raise Failure(f"no queue took it: `laneway route {exchange} {routing_key}` shows why", code="unroutable")


@click.group(cls=FailingGroup, short_help="List, create and delete bindings of exchanges.")
def binding() -> None:
    """List, create and delete bindings: which messages of an exchange go where.

    \b
    laneway binding create orders eu-orders --routing-key 'orders.eu.#'
    laneway binding create amq.headers express --argument x-match=any --argument express=true
    laneway binding list --from orders
    """


@binding.command("list", short_help="List bindings.")
@click.option("--from", "source", metavar="EXCHANGE", help="Only those of this exchange.")
@click.option("--to", "destination", metavar="NAME", help="Only those that lead to this queue or exchange.")
@talks_to_a_server
@pass_session
def list_bindings(session: CliSession, source: str | None, destination: str | None) -> None:
    """List bindings. With --json, one binding on each line. Those that the default exchange implies are left out."""
    with session.client() as client:
        bindings = [
            one
            for one in client.bindings()
            if source in (None, one["source"]) and destination in (None, one["destination"])
        ]
    _print_all(session, ("exchange", "to", "", "routing key", "arguments"), bindings, _binding_row)


def _binding_row(one: dict[str, Any]) -> tuple[object, ...]:
    return one["source"], one["destination_type"], one["destination"], one["routing_key"], _arguments_text(one)


def _arguments_text(one: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in one["arguments"].items())


def takes_a_binding(command: F) -> F:
    options = (
        exchange_argument,
        click.argument("destination", metavar="QUEUE"),
        click.option("--routing-key", default="", metavar="TEXT", help="A routing key, or a pattern of one."),
        click.option(
            "--argument", "arguments", multiple=True, type=name_and_value, help="For a headers exchange; repeatable."
        ),
        click.option("--to-exchange", is_flag=True, help="QUEUE is an exchange."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@binding.command("create", short_help="Bind a queue or an exchange to an exchange.")
@takes_a_binding
@talks_to_a_server
@pass_session
def create_binding(session: CliSession, exchange: str, destination: str, **options: Any) -> None:
    """Bind a queue, or with --to-exchange another exchange, to EXCHANGE.

    \b
    laneway binding create orders eu-orders --routing-key 'orders.eu.#'
    laneway binding create orders audit --to-exchange --routing-key '#'
    """
    options["arguments"] = {name: attribute_value(text) for name, text in options["arguments"]}
    with session.client() as client:
        made = client.bind(exchange, destination, **options)
    print_json(made) if session.json else click.echo(f"{destination} is bound to {exchange}")


@binding.command("delete", short_help="Remove a binding.")
@takes_a_binding
@talks_to_a_server
@pass_session
def delete_binding(session: CliSession, exchange: str, destination: str, **options: Any) -> None:
    """Remove the binding of QUEUE to EXCHANGE with just this routing key and these arguments."""
    options["arguments"] = {name: attribute_value(text) for name, text in options["arguments"]}
    with session.client() as client:
        client.unbind(exchange, destination, **options)
    done = {"source": exchange, "destination": destination, "routing_key": options["routing_key"]}
    print_json({"deleted": done}) if session.json else click.echo(f"{destination} is no longer bound to {exchange}")


@click.command(short_help="Show which queues a message would reach, and why.")
@exchange_argument
@click.argument("routing_key", required=False, default="", metavar="[KEY]")
@click.option(
    "--attribute", "-a", "attributes", multiple=True, type=name_and_value, help="An attribute; may be repeated."
)
@talks_to_a_server
@pass_session
def route(session: CliSession, exchange: str, routing_key: str, attributes: tuple[tuple[str, str], ...]) -> None:
    """Show which queues a message published to EXCHANGE with the routing key KEY would reach, and why.

    Nothing is published.

    \b
    laneway route orders orders.eu.new
    laneway route amq.headers -a region=eu
    """
    with session.client() as client:
        answer = client.route(
            exchange or "amq.default",
            routing_key,
            attributes={name: attribute_value(text) for name, text in attributes},
        )
    if session.json:
        print_json(answer)
    elif answer["routes"]:
        rows = [
            (one["queue_name"] if at == 0 else "", f"{hop['exchange']} → {hop['destination']}", hop["why"])
            for one in answer["routes"]
            for at, hop in enumerate(one["hops"])
        ]
        print_table(("queue", "from → to", "because"), rows)
    else:
        why_not = answer.get("why_not") or "none that you may see"
        click.echo(f"laneway: it would reach no queue: {why_not}", err=True)


def _print_all(
    session: CliSession,
    columns: tuple[str, ...],
    found: list[dict[str, Any]],
    row: Callable[[dict[str, Any]], tuple[object, ...]],
    *,
    numeric: tuple[str, ...] = (),
) -> None:
    if session.json:
        for one in found:
            print_json(one)
    elif found:
        print_table(columns, [row(one) for one in found], numeric=numeric)
    else:
        click.echo("laneway: there are none", err=True)
