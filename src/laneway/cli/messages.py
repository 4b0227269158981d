"""`laneway send`, `receive` and `peek`: messages in and out of a queue."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from laneway.cli.kinds import (
    REASONS,
    DurationUpTo,
    attribute_value,
    duration,
    moment,
    name_and_value,
    priority,
    stdin_bytes,
    stdin_lines,
)
from laneway.cli.session import CliSession, Failure, pass_session, queue_argument, talks_to_a_server
from laneway.cli.show import age, payload_text, print_json, print_table, printable, progress, shortened

if TYPE_CHECKING:
    from laneway.client import Client, ClientError, Message

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_WAIT_SECONDS = 20  # of one request; a longer wait is several
JSON_TYPE = "application/json"
BATCH_MESSAGES = 1000
BATCH_BYTES = 1 << 20
STATES = ("ready", "leased", "delayed", "dead")


def message_options(command: F) -> F:
    """What a message may carry beside its body: the options of all commands that publish."""
    for option in reversed(
        (
            click.option("--priority", "-p", type=priority, help="Higher goes first."),
            click.option(
                "--delay",
                "delay_seconds",
                type=DurationUpTo("15m", otherwise="--at takes a time up to 90 days ahead"),
                help="Hide it for so long, up to 15m.",
            ),
            click.option(
                "--at",
                "deliver_at",
                type=moment,
                metavar="TIME",
                help="Hide it until then: 2030-01-01T10:00:00Z, up to 90 days ahead.",
            ),
            click.option("--ttl", "ttl_seconds", type=duration, help="Let it expire after so long."),
            click.option(
                "--attribute",
                "-a",
                "attributes",
                multiple=True,
                type=name_and_value,
                help="An attribute; may be repeated.",
            ),
            click.option("--content-type", metavar="TYPE", help="What the body is."),
            click.option("--correlation-id", metavar="TEXT", help="Handed on to whoever receives it."),
            click.option(
                "--group", metavar="TEXT", help="Messages of one group are delivered in the order they were sent."
            ),
            click.option("--message-key", metavar="TEXT", help="The key of what the message is about."),
            click.option("--tenant", metavar="TEXT", help="Whose message it is."),
            click.option(
                "--dedup-id",
                metavar="TEXT",
                help="A second message with this id, within the queue's window, is not added.",
            ),
        )
    ):
        command = option(command)
    return command


def options_given(options: dict[str, Any]) -> dict[str, Any]:
    """The options of message_options as the client takes them."""
    options["key"] = options.pop("message_key")
    options["attributes"] = {name: attribute_value(text) for name, text in options["attributes"]} or None
    return options


@click.command(short_help="Publish a message, or one for each line of input.")
@queue_argument
@click.argument("body", required=False, metavar="[BODY|-]")
@message_options
@click.option("--lines", is_flag=True, help="Publish each line of stdin as a message of its own, in batches.")
@talks_to_a_server
@pass_session
def send(
    session: CliSession, queue: str, body: str | None, lines: bool, content_type: str | None, **options: Any
) -> None:
    """Publish a message to QUEUE and print its id, once it is durable.

    \b
    laneway send orders '{"id": 1}' --priority 8
    laneway send orders 'plain text' --delay 5m -a region=eu -a size=3
    laneway send scans - --content-type image/png < scan.png
    laneway send orders --lines < orders.jsonl

    BODY is published as JSON if it is valid JSON, else as text; `-` or nothing takes it from stdin, where bytes that
    are no UTF-8 are published as they are. --content-type overrules all of that. Attributes that look like numbers or
    true/false are sent as such; put double quotes around a value to keep it text.
    """
    options = options_given(options)
    if lines:
        if body not in (None, "-"):
            raise click.UsageError("with --lines the messages come from stdin: leave BODY out")
        _send_lines(session, queue, content_type, options)
        return
    payload = payload_given(body, content_type)
    with session.client() as client:
        answer = client.publish(queue, **payload, **options)
    print_json(answer) if session.json else click.echo(answer["message_id"])
    if answer.get("duplicate") and options["dedup_id"] is not None and not session.json:
        click.echo(
            f"laneway: nothing was added: the dedup id {options['dedup_id']!r} was used before, by the message above",
            err=True,
        )


def payload_given(body: str | None, content_type: str | None) -> dict[str, Any]:
    """BODY, or what stdin has, as publish() takes it."""
    if body is None and sys.stdin.isatty():
        raise click.UsageError("give the BODY, or - to read it from stdin")
    raw = stdin_bytes("the body") if body in (None, "-") else str(body).encode("utf-8", "surrogateescape")
    return _payload(raw, content_type)


def _payload(raw: bytes, content_type: str | None) -> dict[str, Any]:
    """The body as publish() takes it, guessing what it is unless that was said."""
    if content_type == JSON_TYPE:
        try:
            return _json_payload(raw)
        except (ValueError, RecursionError) as error:
            raise Failure(f"the body is not JSON: {error}", code="invalid_input") from None
    if content_type is not None:
        return {"payload": raw, "content_type": content_type}
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"payload": raw, "content_type": "application/octet-stream"}
    try:
        return _json_payload(raw)
    except (ValueError, RecursionError) as wrong:
        if text.lstrip()[:1] in ("{", "["):
            click.echo(
                f"laneway: {shortened(text.strip(), 40)} looks like JSON and is none ({wrong}): it goes out as text; "
                f"--content-type {JSON_TYPE} refuses such a body, --content-type text/plain takes it without a word",
                err=True,
            )
        return {"payload": text, "content_type": "text/plain"}


def _json_payload(raw: bytes) -> dict[str, Any]:
    """Checked, and then published as it was written: no number is rounded, no name dropped."""
    json.loads(raw.decode(), parse_constant=_refuse_constant)
    return {"payload": raw.strip(b" \t\r\n"), "content_type": JSON_TYPE}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not in JSON")


def _send_lines(session: CliSession, queue: str, content_type: str | None, options: dict[str, Any]) -> None:
    if options["dedup_id"] is not None:
        raise click.UsageError("--dedup-id would make all lines after the first one repetitions")
    sent = refused = 0
    with session.client() as client, progress(as_json=session.json) as bar:
        task = bar.add_task("published", total=None) if bar is not None else None
        for batch in _batches(line for line in stdin_lines() if line):
            messages = [{**_payload(line, content_type), **options} for line in batch]
            for result in client.publish_batch(queue, messages):
                if not isinstance(result, dict):
                    refused += 1
                    _say_refused(session, f"message {sent + refused}", result)
                    continue
                sent += 1
                if session.json:
                    print_json(result)
            if bar is not None and task is not None:
                bar.update(task, completed=sent)
    if not session.json:
        click.echo(f"published {sent} message{'' if sent == 1 else 's'}")
    if refused:
        raise Failure(f"{refused} of {sent + refused} messages were refused", code="batch_refused")


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(line) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


def _say_refused(session: CliSession, what: str, error: ClientError) -> None:
    line = json.dumps(error.as_dict()) if session.json else f"laneway: {what}: {error.message}"
    click.echo(line, err=True)


@click.command(short_help="Lease messages and print them.")
@queue_argument
@click.option(
    "--max", "max_messages", default=1, type=click.IntRange(1, 1000), show_default=True, help="Most messages."
)
@click.option("--wait", "wait_seconds", default="0", type=duration, help="Wait so long for the first message.")
@click.option("--lease", "visibility_timeout", type=DurationUpTo("12h"), help="Lease them for so long, up to 12h.")
@click.option("--consumer", "consumer_id", metavar="TEXT", help="The name shown beside the lease.")
@click.option("--ack", "do_ack", is_flag=True, help="Settle them once they are printed.")
@click.option("--bodies", is_flag=True, help="Print the bodies alone, one after the other.")
@talks_to_a_server
@pass_session
def receive(
    session: CliSession, queue: str, max_messages: int, wait_seconds: float, do_ack: bool, bodies: bool, **options: Any
) -> None:
    """Lease messages of QUEUE, highest priority first, and print them. With --json, one message on each line.

    \b
    laneway receive orders
    laneway receive orders --max 10 --wait 20s --ack
    laneway receive orders --json --max 100 | laneway ack orders -

    Without --ack the messages come back when their leases end, unless `laneway ack`, `reject`, `release` or `extend`
    says otherwise.
    """
    with session.client() as client:
        messages = _receive(client, queue, max_messages, wait_seconds, options)
        for message in messages:
            _print_message(session, message, bodies)
        if not messages and not session.json and not bodies:
            click.echo("laneway: no message", err=True)
        if not do_ack or not messages:
            return
        sys.stdout.flush()  # what is not printed must not be gone
        stale = [result for result in client.ack_batch(queue, messages) if not isinstance(result, dict)]
    for error in stale:
        _say_refused(session, "ack", error)
    if stale:
        raise Failure(f"{len(stale)} of {len(messages)} messages could not be acked", code="batch_refused")


def _receive(
    client: Client, queue: str, max_messages: int, wait_seconds: float, options: dict[str, Any]
) -> list[Message]:
    until = time.monotonic() + wait_seconds
    while True:
        wait = min(LONGEST_WAIT_SECONDS, max(0.0, round(until - time.monotonic(), 3)))
        messages = client.receive(queue, max_messages, wait_seconds=wait, **options)
        if messages or time.monotonic() >= until:
            return messages


def _print_message(session: CliSession, message: Message, bodies: bool) -> None:
    if session.json:
        print_json(message.raw)
        return
    if bodies:
        raw = (
            message.payload
            if isinstance(message.payload, bytes)
            else payload_text(message.payload, message.content_type)
        )
        click.echo(raw)
        return
    again = "" if message.receive_count == 1 else f"  receive {message.receive_count}"
    click.echo(f"{message.message_id}  priority {message.priority}  {age(message.enqueued_at)} old{again}")
    if message.attributes:
        click.echo("  " + "  ".join(printable(f"{name}={value}") for name, value in message.attributes.items()))
    click.echo(f"  receipt {message.receipt_handle}")
    click.echo(f"  {printable(payload_text(message.payload, message.content_type))}")


@click.command(short_help="Look at messages without leasing them.")
@queue_argument
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Which; may be repeated.  [default: ready]"
)
@click.option("--priority", type=priority, help="Of this priority.")
@click.option("--attribute", type=name_and_value, help="With this attribute.")
@click.option("--older-than", "older_than_seconds", type=duration, help="Older than this.")
@click.option("--newer-than", "newer_than_seconds", type=duration, help="Younger than this.")
@click.option("--reason", type=click.Choice(REASONS), help="Dead for this reason.")
@click.option("--limit", default=50, type=click.IntRange(min=1), show_default=True, help="Most messages.")
@talks_to_a_server
@pass_session
def peek(session: CliSession, queue: str, states: tuple[str, ...], limit: int, **filters: Any) -> None:
    """Look at messages of QUEUE without leasing them. With --json, one message on each line.

    \b
    laneway peek orders
    laneway peek orders --state dead --reason expired --limit 1000 --json
    laneway peek orders --state leased --older-than 5m
    laneway peek orders --attribute region=eu
    """
    with session.client() as client:
        found = client.peek(queue, states=states or ("ready",), limit=limit, **filters)
        if session.json:
            for message in found:
                print_json(message.raw)
            return
        rows = [_peek_row(message) for message in islice(found, limit)]
    if rows:
        columns = ("message", "state", "priority", "age", "receives", "dead because", "payload")
        shown = [column for column in columns if column != "dead because" or any(row[5] for row in rows)]
        kept = [columns.index(column) for column in shown]
        print_table(shown, [[row[at] for at in kept] for row in rows], numeric=("priority", "receives"))
    else:
        click.echo("laneway: no such message", err=True)


def _peek_row(message: Message) -> tuple[object, ...]:
    return (
        message.message_id,
        message.raw.get("state", ""),
        message.priority,
        age(message.enqueued_at),
        message.receive_count,
        (message.raw.get("dead_letter") or {}).get("reason", ""),
        shortened(payload_text(message.payload, message.content_type), 60),
    )
