"""The command line without a server: what it understands, what it says, how fast it starts, that all is documented."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from laneway.cli import COMMANDS, cli

DOCS = Path(__file__).parent.parent.parent / "docs" / "cli.md"
SHARED_FLAGS = {"--url", "--key", "--user", "--password", "--vhost", "--json", "--help", "-h"} | {
    "--ca",
    "--cert",
    "--cert-key",
}


@pytest.fixture(autouse=True)
def _apart_from_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("URL", "KEY", "USER", "PASSWORD", "VHOST", "CONFIG"):
        monkeypatch.delenv(f"LANEWAY_{name}", raising=False)


def run(*arguments: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin, env=env, prog_name="laneway")


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name; groups are left out that do nothing of their own."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                yield f"{name} {inner.name}", inner
            if command.invoke_without_command:
                yield name, command
        else:
            yield name, command


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- documentation


@pytest.mark.parametrize(
    ("name", "command"), list(all_commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_is_documented_with_all_its_flags(name: str, command: click.Command) -> None:
    section = re.search(rf"^### `laneway {name}`\n(.*?)(?=^##|\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/cli.md has no section ### `laneway {name}`"
    if name in ("serve", "config"):
        return  # their flags are the settings, documented in docs/configuration.md; another test sees to those
    flags = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    missing = {flag for flag in flags - SHARED_FLAGS if f"`{flag}" not in section[1]}
    assert not missing, f"docs/cli.md does not name {missing} in the section of laneway {name}"


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"^### `laneway ([a-z ]+)`$", DOCS.read_text(), re.MULTILINE))
    assert documented == {name for name, _ in all_commands()}


def test_the_shared_options_are_documented() -> None:
    text = DOCS.read_text()
    for flag in SHARED_FLAGS - {"--help", "-h"}:
        assert f"`{flag}" in text


@pytest.mark.parametrize(
    ("name", "command"), list(all_commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_helps(name: str, command: click.Command) -> None:
    shown = run(*name.split(), "--help")
    assert shown.exit_code == 0
    assert f"Usage: laneway {name}" in shown.stdout
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.name} of laneway {name} has no help"


@pytest.mark.parametrize(
    ("name", "command"), list(all_commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_two_options_of_a_command_share_a_name(name: str, command: click.Command) -> None:
    names = [parameter.name for parameter in command.params]
    assert len(names) == len(set(names)), names


def test_the_one_line_helps_are_those_of_the_commands() -> None:
    context = click.Context(cli)
    for name, (_, help) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None and command.short_help == help


# --- starting fast


def test_help_imports_nothing_that_takes_time() -> None:
    watched = {
        "httpx",
        "rich",
        "msgspec",
        "asyncio",
        "laneway.client",
        "laneway.node",
        "laneway.config",
        "tomllib",
        "ssl",
    }
    program = (
        "import sys; sys.argv = ['laneway', '--help']\n"
        "from laneway.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print(sorted({watched!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "Usage: laneway" in done.stdout
    assert done.stderr.strip() == "[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "laneway", "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith("laneway")


# --- failing well


def test_a_server_that_is_not_there_is_exit_code_3_and_one_line() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    failed = run("stats", "--url", url)
    assert failed.exit_code == 3
    assert failed.stdout == ""
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"laneway: cannot reach a server at {url}")
    assert "`laneway serve`" in failed.stderr


def test_with_json_the_failure_is_json_on_stderr() -> None:
    failed = run("--json", "stats", "--url", f"http://127.0.0.1:{closed_port()}")
    assert failed.exit_code == 3
    assert json.loads(failed.stderr)["error"]["code"] == "unreachable"


@pytest.mark.parametrize("before", [True, False])
def test_an_option_works_before_and_after_the_command_and_wins_over_its_variable(before: bool) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    arguments = ("--url", url, "stats") if before else ("stats", "--url", url)
    failed = run(*arguments, env={"LANEWAY_URL": "http://127.0.0.1:1"})
    assert url in failed.stderr


def test_the_variable_is_used_when_nothing_else_is_said() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    assert url in run("stats", env={"LANEWAY_URL": url}).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("stat",), "did you mean stats?"),
        (("queue", "crate"), "did you mean create?"),
        (("frobnicate",), "`laneway --help` lists"),
        (("queue", "create"), "QUEUE"),
        (("queue", "create", "q", "--lease", "soon"), "'soon' is no duration"),
        (("queue", "create", "q", "--max-bytes", "lots"), "'lots' is no size"),
        (("queue", "create", "q", "--max-messages", "1.5"), "'1.5' is no whole number"),
        (("queue", "change", "q"), "at least one setting"),
        (("send", "q", "x", "--attribute", "novalue"), "'novalue' is not NAME=VALUE"),
        (("send", "q", "x", "--lines"), "leave BODY out"),
        (("send", "q", "--lines", "--dedup-id", "d"), "repetitions"),
        (("send", "q", "x", "--priority", "256"), "0 to 255"),
        (("release", "q", "r", "--delay", "1", "--backoff"), "give one"),
        (("ack", "q"), "RECEIPT"),
        (("extend", "q", "r"), "--lease"),
        (("redrive",), "give the QUEUE"),
        (("redrive", "q", "--cancel", "t"), "give the QUEUE"),
        (("redrive", "q", "--id", "i", "--reason", "expired"), "leave the other filters out"),
        (("purge", "q", "--reason", "expired"), "add --dead"),
        (("account", "create", "a"), "--new-password"),
        (("account", "create", "a", "--new-password", "x", "--no-password"), "contradict"),
        (("account", "change", "a"), "at least one thing"),
        (("account", "change", "a", "--permissions", "{"), "not JSON"),
        (("account", "change", "a", "--permissions", "{}"), "is a list"),
        (("account", "change", "a", "--permissions", "[]", "--read", "x"), "says it all"),
        (("account", "change", "a", "--no-permissions", "--read", "x"), "contradicts"),
        (("stats", "--key", "k", "--user", "u"), "give one"),
        (("stats", "--user", "u"), "no password for u"),
        (("stats", "--url", "ftp://host"), "is no address of a server"),
        (("stats", "--url", "http://host:port"), "is no address of a server"),
        (("completion", "powershell"), "powershell"),
        (("send", "q", "x", "--priority"), "`laneway send --help` explains"),
        (("queue", "create", "q", "--lease"), "`laneway queue create --help` explains"),
        (("serve", "--http"), "`laneway serve --help` explains"),
        (("--url",), "`laneway --help` explains"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_explained(arguments: tuple[str, ...], says: str) -> None:
    failed = run(*arguments)
    assert failed.exit_code == 2, failed.output
    assert says in failed.stderr
    assert failed.stderr.startswith("laneway: ") and failed.stderr.count("\n") == 1
    assert failed.stdout == ""


def test_wrong_usage_with_json_is_json() -> None:
    failed = run("stats", "--json", "--key", "k", "--user", "u")
    assert failed.exit_code == 2
    assert json.loads(failed.stderr)["error"]["code"] == "usage"


@pytest.mark.parametrize("arguments", [(), ("queue",)])
def test_a_group_alone_shows_its_help(arguments: tuple[str, ...]) -> None:
    assert "Commands:" in run(*arguments).output


@pytest.mark.parametrize("arguments", [("purge", "q"), ("queue", "delete", "q")])
def test_deleting_asks_and_takes_no_for_an_answer(arguments: tuple[str, ...]) -> None:
    for answer, code in (("n\n", 1), ("\n", 1), ("", 2)):
        asked = run(*arguments, "--url", f"http://127.0.0.1:{closed_port()}", stdin=answer)
        assert asked.exit_code == code
        assert ("give --yes" in asked.stderr) == (code == 2)
        assert "?" in asked.stderr
        assert "cannot reach" not in asked.stderr  # it did not even try


# --- config


def test_config_shows_every_setting_and_its_origin(tmp_path: Path) -> None:
    (tmp_path / "laneway.toml").write_text("max_queues = 7")
    shown = run("config", "--http", "localhost:1", "--json", env={"LANEWAY_LOG_LEVEL": "debug"})
    settings: dict[str, Any] = json.loads(shown.stdout)
    assert settings["http"] == {"value": "localhost:1", "from": "flag --http"}
    assert settings["log_level"] == {"value": "debug", "from": "variable LANEWAY_LOG_LEVEL"}
    assert settings["max_queues"] == {"value": 7, "from": "file laneway.toml"}
    assert settings["durability"] == {"value": "commit", "from": "default"}
    table = run("config").stdout.splitlines()
    assert table[0].split() == ["setting", "value", "from"]
    assert len(table) == 1 + len(settings)


@pytest.mark.parametrize("command", ["config", "serve"])
def test_a_wrong_setting_is_one_line_and_exit_code_1(command: str) -> None:
    failed = run(command, "--max-queues", "none")
    assert failed.exit_code == 1
    assert failed.stderr == (
        "laneway: max_queues must be a whole number from 1 to 10000000, not 'none' (flag --max-queues)\n"
    )
    failed = run(command, env={"LANEWAY_MAX_QUEUE": "1"})
    assert "did you mean LANEWAY_MAX_QUEUES?" in failed.stderr


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_laneway(shell: str) -> None:
    script = run("completion", shell)
    assert script.exit_code == 0
    assert f"_LANEWAY_COMPLETE={shell}_complete" in script.stdout


def complete(words: str, position: int) -> list[str]:
    env = {"_LANEWAY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = subprocess.run(
        [sys.executable, "-m", "laneway"],
        env={**env, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_options_are_completed() -> None:
    assert complete("laneway re", 1) == ["receive", "release", "reject", "redrive", "rebalance", "rebalancing"]
    assert complete("laneway queue de", 2) == ["delete", "describe"]
    assert "--priority" in complete("laneway send q --pri", 3)


def test_completing_a_queue_without_a_server_says_nothing() -> None:
    assert complete(f"laneway stats --url http://127.0.0.1:{closed_port()} or", 4) == []
