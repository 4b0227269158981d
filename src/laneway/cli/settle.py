"""`laneway ack`, `release`, `reject` and `extend`: how the lease of a received message ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from laneway.cli.kinds import DurationUpTo, stdin_lines
from laneway.cli.session import CliSession, Failure, pass_session, queue_argument, talks_to_a_server
from laneway.cli.show import print_json

if TYPE_CHECKING:
    from laneway.client import Client
    from laneway.client.client import Settled

BATCH = 1000


def settles(command: Callable[..., None]) -> Callable[..., None]:
    receipts = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)
    return queue_argument(receipts(talks_to_a_server(pass_session(command))))


@click.command(short_help="Settle received messages: done, delete them.")
@settles
def ack(session: CliSession, queue: str, receipts: tuple[str, ...]) -> None:
    """Settle received messages: done, delete them.

    \b
    laneway ack orders RECEIPT
    laneway receive orders --json --max 100 | laneway ack orders -

    RECEIPT is the receipt handle that came with the message; `-` reads them from stdin, one on each line, plain or as
    the JSON lines that `laneway receive --json` prints.
    """
    _settle(session, "acked", receipts, lambda client, some: client.ack_batch(queue, some))


@click.command(short_help="Give received messages back to their queue.")
@settles
@click.option("--delay", "delay_seconds", type=DurationUpTo("12h"), help="Hide them for so long, up to 12h.")
@click.option("--backoff", is_flag=True, help="Hide them for a time that doubles with each receive, up to 15m.")
def release(
    session: CliSession, queue: str, receipts: tuple[str, ...], delay_seconds: float | None, backoff: bool
) -> None:
    """Give received messages back to their queue, to the place they had.

    \b
    laneway release orders RECEIPT
    laneway release orders RECEIPT --delay 30s
    laneway release orders RECEIPT --backoff

    RECEIPT is the receipt handle that came with the message; `-` reads them from stdin, one on each line, plain or as
    the JSON lines that `laneway receive --json` prints.
    """
    if backoff and delay_seconds is not None:
        raise click.UsageError("--delay and --backoff both say when they come back: give one")
    _settle(
        session,
        "released",
        receipts,
        lambda client, some: client.release_batch(queue, some, delay_seconds=delay_seconds, backoff=backoff),
    )


@click.command(short_help="Turn received messages into dead letters.")
@settles
@click.option("--reason", metavar="TEXT", help="Kept with the dead letter.")
def reject(session: CliSession, queue: str, receipts: tuple[str, ...], reason: str | None) -> None:
    """Turn received messages into dead letters at once.

    \b
    laneway reject orders RECEIPT --reason 'no such customer'

    RECEIPT is the receipt handle that came with the message; `-` reads them from stdin, one on each line, plain or as
    the JSON lines that `laneway receive --json` prints.
    """
    _settle(session, "rejected", receipts, lambda client, some: client.reject_batch(queue, some, reason=reason))


@click.command(short_help="Set when the leases of received messages end.")
@settles
@click.option(
    "--lease",
    "lease_seconds",
    type=DurationUpTo("12h"),
    required=True,
    help="So long from now, up to 12h; 0 gives them back.",
)
def extend(session: CliSession, queue: str, receipts: tuple[str, ...], lease_seconds: float) -> None:
    """Set when the leases of received messages end: so long from now, later or sooner than before.

    \b
    laneway extend orders RECEIPT --lease 10m

    RECEIPT is the receipt handle that came with the message; `-` reads them from stdin, one on each line, plain or as
    the JSON lines that `laneway receive --json` prints.
    """
    _settle(session, "extended", receipts, lambda client, some: client.extend_batch(queue, some, lease_seconds))


def _settle(
    session: CliSession,
    done_word: str,
    given: Sequence[str],
    settle: Callable[[Client, list[str]], list[Settled]],
) -> None:
    done = refused = 0
    receipts = _receipts(given)
    with session.client() as client:
        while some := list(islice(receipts, BATCH)):
            for receipt, result in zip(some, settle(client, some), strict=True):
                if isinstance(result, dict):
                    done += 1
                    if session.json:
                        print_json(result)
                    continue
                refused += 1
                line = json.dumps(result.as_dict()) if session.json else f"laneway: {receipt[:40]}: {result.message}"
                click.echo(line, err=True)
    if not session.json:
        click.echo(f"{done_word} {done} message{'' if done == 1 else 's'}")
    if refused:
        raise Failure(f"{refused} of {done + refused} messages could not be {done_word}", code="batch_refused")


def _receipts(given: Sequence[str]) -> Iterator[str]:
    for one in given:
        if one != "-":
            yield one
            continue
        for number, line in enumerate(stdin_lines(), 1):
            if line:
                yield _receipt_of_line(line.decode("utf-8", "replace").strip(), number)


def _receipt_of_line(line: str, number: int) -> str:
    if not line.startswith("{"):
        return line
    try:
        return str(json.loads(line)["receipt_handle"])
    except (ValueError, KeyError, TypeError):
        raise Failure(f"line {number} of stdin holds no receipt_handle", code="invalid_input") from None
