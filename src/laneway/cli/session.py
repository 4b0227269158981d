"""What the commands share: the options that say which server and as whom, the client made from them, and failing well.

The options may stand before or after the command's name; the later wins, and any of them wins over its variable.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from laneway.cli import kinds
from laneway.cli.show import printable

if TYPE_CHECKING:
    from laneway.client import Client, ClientError

DEFAULT_URL = "http://127.0.0.1:8080"

REFUSED = 1  # the server refused, or something failed on the way
USAGE = 2
UNREACHABLE = 3

LOOKED_THROUGH = 1000  # queues, for one whose name is like a name that was not found

#: What to do next, by the code of the refusal.
ADVICE = {
    "unreachable": "start one with `laneway serve`, or name another with --url",
    "timed_out": "the server may be busy: see its log, then try again",
    "not_laneway": "name the right server with --url",
    "tls_failed": "--ca names who signed its certificate, --cert one of your own",
    "unauthenticated": "give --key, or --user and --password (or LANEWAY_KEY, LANEWAY_USER, LANEWAY_PASSWORD)",
    "forbidden": "`laneway account change` grants permissions, with an admin's credentials",
    "queue_not_found": "`laneway queue list` shows the queues there are, `laneway queue create` makes one",
    "exchange_not_found": "`laneway exchange list` shows those there are, `laneway exchange create` makes one",
    "exchange_exists": "`laneway exchange list` shows how it is; to change it, delete it first",
    "connection_not_found": "`laneway connections` shows those there are",
    "binding_not_found": "`laneway binding list` shows those there are",
    "vhost_not_found": "`laneway vhost list` shows those there are, `laneway vhost create` makes one",
    "account_not_found": "`laneway account list` shows the accounts there are",
    "lease_stale": "its lease ended or was settled already: receive it again",
    "queue_full": "wait until consumers catch up, or raise its limits with `laneway queue change`",
    "memory_low": "consume some messages, or give the server more memory: it goes on by itself",
    "disk_full": "free some space on the server's disk: it goes on by itself",
    "too_large_for_disk": "publish less at once, or free some space on the server's disk",
}


class CliSession:
    """Which server, as whom, and whether a program reads the output."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    @property
    def json(self) -> bool:
        return bool(self.options.get("json"))

    def client(self, *, timeout_seconds: float = 30.0, attempts: int = 3) -> Client:
        from laneway.client import Client

        key, user, password = self.credentials()
        try:
            return Client(
                self.url(),
                key=key,
                user=user,
                password=password,
                vhost=self.vhost(),
                **self.tls(),
                timeout_seconds=timeout_seconds,
                attempts=attempts,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def url(self) -> str:
        return self._option("url") or DEFAULT_URL

    def vhost(self) -> str:
        return self._option("vhost") or "/"

    def tls(self) -> dict[str, str | None]:
        """The files that https:// addresses may need, as the client takes them."""
        return {name: self._option(name) for name in ("ca", "cert", "cert_key")}

    def credentials(self) -> tuple[str | None, str | None, str | None]:
        """(key, user, password): those given as options, else those of the environment."""
        given = self.options
        if given.get("key") and given.get("user"):
            raise click.UsageError("--key and --user are two ways to say who you are: give one")
        if given.get("key"):
            return given["key"], None, None
        if not given.get("user") and os.environ.get("LANEWAY_KEY"):
            return os.environ["LANEWAY_KEY"], None, None
        user, password = self._option("user"), self._option("password")
        if user and not password:
            if not sys.stdin.isatty():
                raise click.UsageError(f"there is no password for {user}: give --password or LANEWAY_PASSWORD")
            password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
        return None, user, password if user else None

    def _option(self, name: str) -> str | None:
        return self.options.get(name) or os.environ.get(f"LANEWAY_{name.upper()}") or None


class Failure(click.ClickException):
    """Ends the command with one line on stderr: what went wrong, and what to do next."""

    exit_code = REFUSED

    def __init__(self, message: str, *, code: str = "failed", **shown: Any) -> None:
        super().__init__(message)
        self.code = code
        self.shown = shown
        self.as_json = False

    def show(self, file: Any = None) -> None:
        if self.as_json:
            click.echo(json.dumps({"error": {"code": self.code, "message": self.message, **self.shown}}), err=True)
            return
        advice = ADVICE.get(self.code)
        # It may name what others chose: a queue, say.
        click.echo(f"laneway: {printable(self.message)}" + (f" ({advice})" if advice else ""), err=True)


class Unreachable(Failure):
    exit_code = UNREACHABLE


class WrongUsage(click.UsageError):
    """click's own, in one line like every other failure."""

    as_json = False

    def show(self, file: Any = None) -> None:
        message = self.format_message()
        if self.as_json:
            click.echo(json.dumps({"error": {"code": "usage", "message": message}}), err=True)
            return
        command = self.ctx.command_path if self.ctx is not None else "laneway"
        advice = "" if "--help`" in message else f" (`{command} --help` explains)"
        click.echo(f"laneway: {message.rstrip('.')}{advice}", err=True)


class FailingGroup(click.Group):
    """A group that turns what the client and the node raise into a Failure, and suggests commands."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **extra)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise WrongUsage(error.format_message(), error.ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            name = ctx.invoked_subcommand
            if isinstance(error, click.UsageError) and error.ctx is None and name is not None:
                # click's parser does not say which command's option lacks its value.
                command = self.get_command(ctx, name)
                error.ctx = click.Context(command, ctx, name) if command is not None else ctx
            failure = as_failure(error)
            if failure is None:
                raise
            session = ctx.find_object(CliSession)
            if isinstance(failure, Failure | WrongUsage):
                failure.as_json = session is not None and session.json
            if failure is error:
                raise
            raise failure from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx) and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean {close[0]}?" if close else f"`{ctx.command_path} --help` lists what there is"
            raise click.UsageError(f"there is no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)


def as_failure(error: Exception) -> click.ClickException | None:
    """What the error means on the command line; None if it is a mistake of ours, to be seen in full."""
    if isinstance(error, Failure | WrongUsage | click.exceptions.NoArgsIsHelpError):
        return error
    if isinstance(error, click.UsageError):
        return WrongUsage(error.format_message(), error.ctx)
    if isinstance(error, click.ClickException):
        return error

    from laneway.client import ClientError
    from laneway.errors import LanewayError

    if isinstance(error, ClientError):
        shown = {**({"field": error.field} if error.field else {}), **error.details}
        kind = Unreachable if error.code in ("unreachable", "timed_out", "not_laneway", "tls_failed") else Failure
        return kind(error.message, code=error.code, **shown)
    if isinstance(error, LanewayError):
        named: dict[str, Any] = {"field": error.field} if error.field else {}
        return Failure(error.message, code=error.code, **named)
    return None


F = TypeVar("F", bound=Callable[..., Any])


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    session = ctx.ensure_object(CliSession)
    if value is not None and parameter.name is not None:
        session.options[parameter.name.removesuffix("_")] = value


def _option(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, default=None, **attributes)


def prints_json(command: F) -> F:
    return _option("--json", is_flag=True, flag_value=True, help="Print JSON, for programs.")(command)


def names_a_server(command: F) -> F:
    """Give a command the options that say which server and as whom, and --json."""
    options = (
        _option("--url", metavar="URL", help=f"The server (LANEWAY_URL; default {DEFAULT_URL})."),
        _option("--key", metavar="KEY", help="An API key (LANEWAY_KEY)."),
        _option("--user", metavar="NAME", help="An account (LANEWAY_USER)."),
        _option("--password", metavar="TEXT", help="Its password (LANEWAY_PASSWORD); asked for if left out."),
        _option("--ca", metavar="FILE", help="Who signed the certificate of an https:// server (LANEWAY_CA)."),
        _option("--cert", metavar="FILE", help="A certificate of your own, if it wants one (LANEWAY_CERT)."),
        _option("--cert-key", metavar="FILE", help="Its key, if in another file (LANEWAY_CERT_KEY)."),
        prints_json,
    )
    for option in reversed(options):
        command = option(command)
    return command


def talks_to_a_server(command: F) -> F:
    """The same with --vhost."""
    vhost = _option("--vhost", metavar="NAME", help="The virtual host of the queues (LANEWAY_VHOST; default /).")
    return names_a_server(vhost(command))


def pass_session(command: Callable[..., None]) -> Callable[..., None]:
    """Call the command with the session as its first argument."""

    @wraps(command)
    def with_session(*arguments: Any, **options: Any) -> None:
        ctx = click.get_current_context()
        session = ctx.ensure_object(CliSession)
        try:
            command(session, *arguments, **options)
        except Exception as error:
            from laneway.client import ClientError  # only now: it takes its time to load

            if isinstance(error, ClientError):
                if error.code == "queue_not_found":
                    error.message = _like(session, options.get("queue")) or error.message
                elif error.code == "invalid_input":
                    error.message = _in_flags(ctx.command, error)
            raise

    return with_session


def _in_flags(command: click.Command, error: ClientError) -> str:
    """What the server says of a field, said of the flag that filled it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and error.field is not None:
            if error.field.rpartition(".")[2] == parameter.name:
                return f"{parameter.opts[0]}: {error.message.removeprefix(f'{error.field}: ')}"
    return error.message


def _like(session: CliSession, name: object) -> str:
    """What to say of a queue that is not there, if one with a similar name is."""
    if not isinstance(name, str):
        return ""
    names = queue_names(session, "", LOOKED_THROUGH)
    close = difflib.get_close_matches(name, [one for one in names if one != name], n=1)
    return f"there is no queue {name!r}: did you mean {close[0]}?" if close else ""


def confirm(question: str) -> None:
    """Go on only if a person says yes; a script says --yes."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        if not sys.stdin.isatty() and isinstance(error.__context__, EOFError):
            click.echo(err=True)  # the question stands on a line without an end
            raise click.UsageError("there is nobody to ask: give --yes") from None
        raise


def complete_queue(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of queues for the shell."""
    return queue_names(ctx.find_object(CliSession) or CliSession(), incomplete, 100)


def queue_names(session: CliSession, prefix: str, most: int) -> list[str]:
    """Names of queues as a help for people: quickly, or not at all."""
    try:
        with session.client(timeout_seconds=1.0, attempts=1) as client:
            return [queue["queue_name"] for queue in islice(client.queues(prefix, limit=min(most, 1000)), most)]
    except Exception:  # whatever it is, it has no place in what the command says
        return []


queue_argument = click.argument("queue", metavar="QUEUE", type=kinds.name, shell_complete=complete_queue)
