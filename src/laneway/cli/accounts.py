"""`laneway account …` and `laneway key …`: who may use the server, and how they prove who they are."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from laneway.cli.kinds import stdin_bytes
from laneway.cli.session import CliSession, FailingGroup, Failure, confirm, pass_session, talks_to_a_server
from laneway.cli.show import print_json, print_table

F = TypeVar("F", bound=Callable[..., Any])

ROLES = ("admin", "operator", "monitor", "user")
NEEDS = ("read", "write", "configure")

account_argument = click.argument("name", metavar="NAME")


def takes_permissions(command: F) -> F:
    options = (
        click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="A role; may be repeated."),
        click.option("--read", multiple=True, metavar="PATTERN", help="May receive, settle and peek at these queues."),
        click.option("--write", multiple=True, metavar="PATTERN", help="May publish to these queues."),
        click.option("--configure", multiple=True, metavar="PATTERN", help="May create, change, purge, redrive these."),
        click.option("--in-vhost", default="*", metavar="PATTERN", help="… in these virtual hosts.  [default: *]"),
        click.option("--permissions", "document", metavar="JSON", help="All permissions, as the API takes them."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _permissions(options: dict[str, Any]) -> list[dict[str, Any]] | None:
    """One permission for each pattern, with all that was asked for it; None if nothing was said."""
    document = options["document"]
    patterns = list(dict.fromkeys(pattern for need in NEEDS for pattern in options[need]))
    if document is not None:
        if patterns:
            raise click.UsageError("--permissions says it all: leave --read, --write and --configure out")
        try:
            permissions = json.loads(document)
        except ValueError as error:
            raise click.UsageError(f"--permissions is not JSON: {error}") from None
        if not isinstance(permissions, list):
            raise click.UsageError('--permissions is a list, like [{"queue": "orders.*", "read": true}]')
        return permissions
    if not patterns:
        return None
    vhost = options["in_vhost"]
    return [
        {"queue": pattern, "vhost": vhost, **{need: True for need in NEEDS if pattern in options[need]}}
        for pattern in patterns
    ]


def _password(given: str | None) -> str | None:
    if given != "-":
        return given
    return stdin_bytes("the password").decode("utf-8", "replace").rstrip("\r\n")


@click.group(cls=FailingGroup, short_help="List, create, change and delete accounts.")
def account() -> None:
    """List, create, change and delete accounts. This needs the role admin.

    \b
    laneway account create ann --role admin
    laneway account create shop --write 'orders.*' --no-password
    laneway account change shop --write 'orders.*' --read 'results.*'

    Roles: admin may do everything, operator everything with queues, monitor may see counts, user only what its
    permissions say. Patterns: * is any text, ? any one character.
    """


@account.command("list", short_help="List the accounts.")
@talks_to_a_server
@pass_session
def list_accounts(session: CliSession) -> None:
    """List the accounts. With --json, one on each line."""
    with session.client() as client:
        accounts = client.accounts()
    if session.json:
        for one in accounts:
            print_json(one)
        return
    rows = [(one["name"], " ".join(one["roles"]), permissions_text(one)) for one in accounts]
    print_table(("account", "roles", "permissions"), rows)


def permissions_text(account: dict[str, Any]) -> str:
    """Those of RabbitMQ's kinds are regular expressions, between slashes."""
    shown = []
    for one in account["permissions"]:
        needs = ",".join(need for need in NEEDS if one.get(need)) or "nothing"
        vhost = one.get("vhost", "*")
        shown.append(f"{needs} {one.get('queue', '*')}" + ("" if vhost == "*" else f" in {vhost}"))
    for one in account.get("vhost_permissions", ()):
        said = " ".join(f"{need} /{one[need]}/" for need in NEEDS if one[need]) or "nothing"
        shown.append(f"{said} in {one['vhost']}")
    for one in account.get("topic_permissions", ()):
        said = " ".join(f"{need} keys /{one[need]}/" for need in ("read", "write"))
        shown.append(f"{said} of {one['exchange']} in {one['vhost']}")
    return "; ".join(shown)


@account.command("create", short_help="Create an account.")
@account_argument
@click.option("--new-password", metavar="TEXT", help="Its password; - reads it from stdin.  [default: ask]")
@click.option("--no-password", is_flag=True, help="None: it will use API keys.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="In this data folder, which no server runs on, instead of asking one.",
)
@takes_permissions
@talks_to_a_server
@pass_session
def create_account(
    session: CliSession,
    name: str,
    new_password: str | None,
    no_password: bool,
    data: Path | None,
    roles: tuple[str, ...],
    **options: Any,
) -> None:
    """Create an account. From then on, everybody needs credentials.

    \b
    laneway account create ann --role admin
    laneway account create shop --write 'orders.*' --no-password
    laneway account create ann --role admin --data /var/lib/laneway
    """
    if no_password and new_password is not None:
        raise click.UsageError("--new-password and --no-password contradict each other")
    permissions = _permissions(options)
    if new_password is None and not no_password:
        if not sys.stdin.isatty():
            raise click.UsageError("give --new-password (- reads it from stdin), or --no-password")
        new_password = click.prompt(f"Password for {name}", hide_input=True, confirmation_prompt=True, err=True)
    if data is not None:
        made = _create_offline(session, data, name, _password(new_password), roles, permissions)
    else:
        with session.client() as client:
            if any(one["name"] == name for one in client.accounts()):
                raise _exists(name)
            password = _password(new_password)
            made = client.put_account(name, password=password, roles=list(roles) or None, permissions=permissions)
    print_json(made) if session.json else click.echo(f"created account {name}")


def _exists(name: str) -> Failure:
    return Failure(f"there is an account {name!r} already: `laneway account change` changes it", code="account_exists")


def _create_offline(
    session: CliSession,
    data: Path,
    name: str,
    password: str | None,
    roles: tuple[str, ...],
    permissions: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    """In a folder that no server runs on; made when missing."""
    if session.options.get("url"):
        raise click.UsageError("--data and --url contradict each other: a folder, or the server that runs on it")
    from laneway.access import Permission
    from laneway.cli.serve import config_in_force
    from laneway.errors import JournalLocked
    from laneway.node import offline

    try:
        wanted = None if permissions is None else msgspec.convert(permissions, list[Permission])
    except msgspec.ValidationError as error:
        raise click.UsageError(f"--permissions: {error}") from None

    async def create() -> dict[str, Any]:
        async with offline(config_in_force(None, {"data": str(data)})) as access:
            if any(account.name == name for account in access.accounts()):
                raise _exists(name)
            made = await access.put_account(name, password=password, roles=roles or None, permissions=wanted)
        return {"name": made.name, "roles": list(made.roles), "permissions": msgspec.to_builtins(made.permissions)}

    try:
        return asyncio.run(create())
    except JournalLocked as locked:
        process = locked.details.get("pid") or "unknown"
        raise Failure(
            f"a server runs on {data} (process {process}): leave --data out, and it is asked", code=locked.code
        ) from None


@account.command("change", short_help="Change an account; everybody may change their own password.")
@account_argument
@click.option("--new-password", metavar="TEXT", help="Its new password; - reads it from stdin.")
@takes_permissions
@click.option("--no-permissions", is_flag=True, help="Take all its permissions away.")
@talks_to_a_server
@pass_session
def change_account(
    session: CliSession,
    name: str,
    new_password: str | None,
    roles: tuple[str, ...],
    no_permissions: bool,
    **options: Any,
) -> None:
    """Change an account: what is given replaces what it had, the rest stays. Everybody may change their own password.

    \b
    laneway account change ann --new-password -
    laneway account change shop --role user --write 'orders.*' --read 'results.*'
    """
    permissions = _permissions(options)
    if no_permissions:
        if permissions is not None:
            raise click.UsageError("--no-permissions contradicts the permissions given")
        permissions = []
    changes = {"password": _password(new_password), "roles": list(roles) or None, "permissions": permissions}
    if all(change is None for change in changes.values()):
        raise click.UsageError("give at least one thing to change")
    with session.client() as client:
        if new_password is None or len([one for one in changes.values() if one is not None]) > 1:
            client.account(name)  # a change must not create; a mere password change is the account's own business
        changed = client.put_account(name, **changes)  # type: ignore[arg-type]
    print_json(changed) if session.json else click.echo(f"changed account {name}")


@account.command("delete", short_help="Delete an account and its API keys.")
@account_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@talks_to_a_server
@pass_session
def delete_account(session: CliSession, name: str, yes: bool) -> None:
    """Delete an account and its API keys. The last admin cannot be deleted."""
    with session.client() as client:
        if not yes:
            client.account(name)  # whoever may not delete it, or misspelt it, learns that before the question
            confirm(f"Delete the account {name!r} and its API keys?")
        client.delete_account(name)
    print_json({"deleted": name}) if session.json else click.echo(f"deleted account {name}")


@click.group(cls=FailingGroup, short_help="Create, list and delete API keys.")
def key() -> None:
    """Create, list and delete API keys of accounts.

    \b
    laneway key create shop --label 'checkout, production'
    laneway key list shop
    """


@key.command("create", short_help="Create an API key and print it: it is shown this once.")
@account_argument
@click.option("--label", default="", metavar="TEXT", help="To recognise it by.")
@click.option("--aws", is_flag=True, help="An access key id and a secret, for SQS clients.")
@talks_to_a_server
@pass_session
def create_key(session: CliSession, name: str, label: str, aws: bool) -> None:
    """Create an API key of the account NAME and print it: it is shown this once, only its hash is kept.

    With --aws it is an access key for SQS clients, printed as the two variables that they read.

    \b
    laneway key create shop --label 'checkout, production'
    export LANEWAY_KEY=$(laneway key create shop)
    export $(laneway key create shop --aws)
    """
    with session.client() as client:
        made = client.create_key(name, label, "aws" if aws else "api")
    if session.json:
        print_json(made)
        return
    if aws:
        click.echo(f"AWS_ACCESS_KEY_ID={made['key_id']}\nAWS_SECRET_ACCESS_KEY={made['key']}")
        click.echo(f"laneway: access key of {name}; keep the secret now, it is not shown again", err=True)
        return
    click.echo(made["key"])
    click.echo(f"laneway: key {made['key_id']} of {name}; keep it now, it is not shown again", err=True)


@key.command("list", short_help="List the API keys of an account.")
@account_argument
@talks_to_a_server
@pass_session
def list_keys(session: CliSession, name: str) -> None:
    """List the API keys of the account NAME, never the keys themselves. With --json, one on each line."""
    with session.client() as client:
        keys = client.keys(name)
    if session.json:
        for one in keys:
            print_json(one)
    elif keys:
        print_table(("key", "created", "label"), [(one["key_id"], one["created_at"], one["label"]) for one in keys])
    else:
        click.echo(f"laneway: {name} has no keys", err=True)


@key.command("delete", short_help="Delete an API key: it stops working at once.")
@account_argument
@click.argument("key_id", metavar="KEY")
@talks_to_a_server
@pass_session
def delete_key(session: CliSession, name: str, key_id: str) -> None:
    """Delete the API key with the id KEY of the account NAME: it stops working at once."""
    with session.client() as client:
        client.delete_key(name, key_id)
    print_json({"deleted": key_id}) if session.json else click.echo(f"deleted key {key_id}")
